"""Places into IANA time zones: the cities that name a zone, and some that people say instead."""

from __future__ import annotations

import re
from functools import cache
from zoneinfo import available_timezones

from toolbay.search.words import CJK, fold

_AREAS = ("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")

_OTHERS = """
America/New_York: boston, washington, miami, philadelphia, atlanta, est, edt, 纽约, 华盛顿, 波士顿, ニューヨーク
America/Los_Angeles: san francisco, seattle, las vegas, san diego, california, pst, pdt, 洛杉矶, 旧金山, 西雅图
America/Chicago: houston, dallas, austin, texas, 芝加哥
America/Toronto: montreal, ottawa, 多伦多
America/Sao_Paulo: rio de janeiro, brasilia, 圣保罗
America/Argentina/Buenos_Aires: argentina
Europe/London: england, britain, united kingdom, uk, scotland, edinburgh, manchester, 伦敦, 英国, ロンドン
Europe/Paris: france, lyon, marseille, 巴黎, 法国, パリ
Europe/Berlin: germany, munich, hamburg, frankfurt, cologne, deutschland, munchen, cet, cest, 柏林, 德国, ベルリン
Europe/Madrid: spain, barcelona, 马德里, 西班牙
Europe/Rome: italy, milan, rom, 罗马, 意大利
Europe/Zurich: switzerland, geneva, bern, basel
Europe/Vienna: austria, wien
Europe/Amsterdam: netherlands, holland, rotterdam
Europe/Brussels: belgium
Europe/Stockholm: sweden
Europe/Oslo: norway
Europe/Copenhagen: denmark
Europe/Helsinki: finland
Europe/Warsaw: poland
Europe/Lisbon: portugal
Europe/Athens: greece
Europe/Kyiv: ukraine, kiev
Europe/Moscow: 莫斯科
Europe/Istanbul: turkey
Asia/Tokyo: japan, osaka, kyoto, jst, 东京, 日本, 東京
Asia/Shanghai: china, beijing, shenzhen, guangzhou, hangzhou, 北京, 上海, 中国, 深圳, 广州
Asia/Hong_Kong: 香港
Asia/Taipei: taiwan, 台北
Asia/Singapore: 新加坡
Asia/Seoul: korea, south korea, 首尔, 韩国, ソウル
Asia/Kolkata: india, mumbai, delhi, new delhi, bangalore, bengaluru, chennai, 印度, 孟买, 新德里
Asia/Dubai: 迪拜
Asia/Jerusalem: israel, tel aviv
Asia/Ho_Chi_Minh: vietnam, saigon, hanoi
Asia/Jakarta: indonesia
Asia/Manila: philippines
Asia/Bangkok: thailand, 曼谷
Africa/Cairo: egypt
Africa/Johannesburg: south africa, cape town
Africa/Nairobi: kenya
Africa/Lagos: nigeria
Australia/Sydney: canberra, 悉尼, シドニー
Australia/Melbourne: 墨尔本
Pacific/Auckland: new zealand, wellington
Pacific/Honolulu: hawaii
UTC: utc, gmt, zulu
"""


@cache
def _ids() -> dict[str, str]:
    return {zone.casefold(): zone for zone in available_timezones() if "/" in zone}


@cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for zone in sorted(_ids().values()):
        if zone.startswith(tuple(area + "/" for area in _AREAS)):
            names.setdefault(fold(zone.rpartition("/")[2]).replace("_", " "), zone)
    for line in _OTHERS.strip().splitlines():
        zone, _, others = line.partition(": ")
        for name in others.split(", "):
            names[name] = zone
    return names


@cache
def _pattern() -> re.Pattern[str]:
    places = sorted(_names(), key=lambda name: (-len(name), name))
    native = "|".join(re.escape(name) for name in places if re.match(f"[{CJK}]", name))
    latin = "|".join(re.escape(name) for name in places if not re.match(f"[{CJK}]", name))
    return re.compile(rf"({native})|(?<![\w/])({latin})(?![\w/])")


def zones(text: str) -> list[tuple[str, int, int]]:
    """The zones that `text` speaks of, in order, each with where it stands; ids themselves (`Asia/Tokyo`) too."""
    known = _ids()
    ids = re.finditer(r"[A-Za-z]+(?:/[A-Za-z_+-]+\d*){1,2}", text)
    found = [(known[match[0].casefold()], *match.span()) for match in ids if match[0].casefold() in known]
    folded = "".join(fold(char) if len(fold(char)) == 1 else char for char in text)
    for match in _pattern().finditer(folded):
        is_taken = any(start <= match.start() < end for _, start, end in found)
        if not is_taken and _is_meant(text, match):
            found.append((_names()[match[0]], *match.span()))
    return sorted(found, key=lambda one: one[1])


def _is_meant(text: str, match: re.Match[str]) -> bool:
    """A place is written with a capital, or stands after a word of place: `jersey` alone is a shirt."""
    written = text[match.start() : match.end()]
    return written != written.casefold() or bool(match[1]) or bool(re.search(r"\b(?:in|to|from|at|of|for)\s+$", text[: match.start()]))
