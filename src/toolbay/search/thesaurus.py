"""Words that people use and the words that tools use for the same: general vocabulary, in a few languages.

Each line of `LINES` reads `what tools say : what people say`. A person's word stands for the words at the left; the words at the
left stand for each other a little. Entries with a space, or in Chinese or Japanese, are looked for as phrases.
"""

from __future__ import annotations

_STOP = """
a about after all also am an and any anyone are as at be because been before but by can could did do does doing don down during each else
every few for from had has have having he help her here hers him his how i if in into is it its just let lets like ll many may me might
more most much must my need no nor not now of off on once one only or other our ours out over own per please re s same shall she should so
some somebody somewhere such t than thank thanks that the their them then there these they this those through to too under until up us use
using ve very want was way we were what when where whether which while who whom whose why will with would yet you your tell give show got
get made put see look know find take
der die das den dem des ein eine einen einem einer und oder ist sind war ich du er sie es wir ihr mir mich mein meine im auf an aus bei mit
nach von zu zum zur fur was wer wie wo wann bitte nicht auch noch
le la les un une du de et ou est sont je tu il elle nous vous mon ma mes ce cette ces dans sur avec pour par que qui quoi au aux en ne pas
d l j c qu el los las una unos unas y o es son yo mi mis este esta estos estas con para por cual como donde cuando del al se lo
"""
STOP = frozenset(_STOP.split())
"""Words that say nothing of what is wanted."""

LINES = """
read content : open view see says said inside print cat lies lesen steht lire leer lee muestra 读 看看 查看 打开 内容 写了什么 読 中身
write create save : put store jot record keep schreibe schreiben speichern ecris ecrire escribe escribir guarda 写 写入 保存 记录 書
create new add : make produce build set erstelle anlegen cree creer crea crear nuevo 新建 创建 建立 添加 加 作成
edit update replace modify : change revise amend alter fix ersetze ersetzen andern aendern durch
edit update replace modify : modifie remplacer cambia reemplaza 改 修改 更新 换成 替换 編集
delete remove : drop erase kill wipe clear discard trash loschen loesche entfernen
delete remove : supprime effacer borra elimina 删 删除 删掉 清除 去掉 移除 削除
move rename : rename move relocate shift transfer pasa mueve verschiebe umbenennen deplace 移动 改名 重命名 移到
copy duplicate clone : 复制 拷贝 kopiere copie
list : ls dir which all enumerate everything exist available listing liste zeige lista 列出 有哪些 哪些 一览 清单 列表 一覧
search find query : look seek locate discover lookup suche suchen finde cherche chercher trouve
search find query : busca buscar encuentra 找 查 搜 搜索 查找 查询 搜一下 検索 探
count number : many amount wieviele combien cuantos 多少 几个 数量
send message : notify tell inform announce broadcast post sende schicke envoie envia 发 发送 通知 告诉 广播 送信
reply : answer respond antworte reponds responde 回复 回答
convert : turn transform export translate migrate wandle convertis convierte 转换 转成 转为 变成 変換
diff compare difference : compare differ changed vergleiche compare 比较 对比 区别 差异
download fetch : retrieve grab pull get load herunterladen hole recupere telecharge descarga 下载 获取 抓取
upload attach attachment : push 上传 附件
run execute start : launch perform invoke trigger fuhre aus lance ejecuta 运行 执行 启动 跑 実行
stop cancel : end abort halt quit interrupt stoppe arrete deten 停止 取消 中止
undo revert rollback : back restore 撤销 回滚 退回 恢复
schedule calendar event : meeting appointment invite invitation termin besprechung reunion rendez cita 日程 会议 日历 约会 予定
accept approve : agree confirm 同意 批准
decline reject deny : refuse turned 拒绝
mute silence : quiet snooze suppress 静音
subscribe watch monitor alert : follow track keep eye notice whenever 监控 关注 订阅 监视
file document : files text datei dateien fichier archivo 文件 档案 文档 ファイル
directory folder file : folders ordner verzeichnis dossier carpeta 目录 文件夹 フォルダ
tree hierarchy : nested outline structure 树 结构
file size info metadata : big large modified 多大 大小 修改时间 最后一次修改
path : location 路径
time current : clock hour oclock uhr uhrzeit spat heure hora 时间 几点 点钟 何時 時間 时刻 现在几点
timezone time convert : zone 时区 北京时间
date day : today tomorrow yesterday tonight week month heute morgen aujourd hoy 今天 明天 昨天 日期
web internet search : google online duckduckgo bing news internet 上网 网上 互联网 新闻
web page url website fetch content scrape : link site article blog webpage webseite seite pagina sitio 网页 网站 网址 链接 页面 文章
crawl website : parcours spider
extract scrape : pull out fields
screenshot image : picture photo snapshot screen capture bild foto 截图 截屏 图片 照片 画像
git repository repo : local code branch 仓库 代码库
branch : zweig branche rama 分支
merge request pull : propose mr pr 合并
comment remark : remark note feedback reviewers 评论 批注 备注
flaky tests : unreliable
logs : print printed output stdout 日志
database table sql schema : columns rows sqlite postgres mysql tables db spalten tabelle 数据库 表 列 字段
note notes write : jot memo notiz notizen 笔记 记下 メモ
translate : ubersetze traduis traduce 翻译
summarize summary : 总结 摘要
email mail message : gmail mails newsletter inbox mailbox 邮件 邮箱 メール
task todo : tick buy reminder erledigt 待办 任务
spreadsheet sheet : excel workbook 表格
chart : graph diagram plot 图表
paragraph document word : docx 段落
replace text search : uberall everywhere partout 全部
protect password encrypt : lock secure 密码 加密
map place location : where near lage karte 地图 地点 附近
geocode coordinates latitude longitude : 经纬度 坐标
directions route distance : drive driving walk long far way fahrt trajet 路线 距离 怎么走 多远
weather forecast : rain sunny temperature wetter meteo clima tiempo 天气
dashboard panel : grafana 仪表盘
incident : incidente outage vorfall 事故 故障
validate check lint : mistakes errors correct verify 检查 验证
papers arxiv research : paper study academic literature 论文
citation export bibtex : references
upsert insert : store put
environment variables env : 环境变量
shell command bash process terminal : npm run shell cmd 命令 终端
gzip compress zip : shrink pack 压缩
sum numbers : plus add total 相加 求和
echo : repeat say
issue ticket work item : bug task problem 工单 问题 缺陷 任务
message chat group : channel team 消息 群 群聊
user account contact : person people colleague 用户 联系人 账号 账户
knowledge graph memory entities observations : remember memorize memorise know fact facts 记住 记忆 知识图谱 覚
relation link : relate related relationship connect connected connection 关联 关系
dependency : dependencies depend depends blocked 依赖 阻塞
status state transition : stage column 状态 阶段
build pipeline : ci compile 流水线 构建 编译
test : tests testing 测试
failure error log : break breaks broke broken fail fails failing failed crash crashed crashes why 失败 错误 报错 崩溃
logs : printed output stdout 日志
deploy deployment : release rollout 部署 上线 发布
scale replicas : copies instances 扩容 副本
pod container kubernetes : k8s cluster kubectl 集群 容器
switch : change 切换
commit log history : committed commits 提交 历史
blame author : wrote who 作者
diff unstaged staged : changes edits changed edited 改动
collection : 集合
index : indexes indices 索引
explain query performance : slow faster quicker speed optimise optimize why 慢 优化
health : healthy shape condition 健康
storage size : disk space 磁盘 空间
cpu memory usage top : ram consume consumes consumption 内存
expire ttl : expiry disappear vanish 过期 失效
publish : broadcast 发布 广播
channel : 频道
key value : cache 缓存 键
service call control : turn switch
state entity home : light lights lamp room temperature door thermostat 灯 客厅 卧室 温度 门
oncall schedule : duty 值班
workflow template automation : flow 工作流 自动化
feature flag : toggle experiment 功能开关
permission access sharing : anyone allowed rights share shared 权限 访问
presentation slide : deck decks powerpoint ppt 幻灯片 演示
listing : hotel accommodation room apartment rent stay sleep unterkunft alojamiento 民宿 住宿 房源 酒店
browser : chrome firefox tab tabs 浏览器
page : pages seite seiten pagina 页 页面
row record item : rows records entry line 行 记录
screen recording record video : film filming 录制 录像 录屏
vector semantic similar embedding : closest nearest similarity meaning 向量 语义
freebusy availability : free slot slots gap gaps busy available 空闲 有空
worklog time : spent hours logged 工时
artifact : artifacts produced 产物
vulnerability security advisory alert : vulnerable leak leaked exploit cve 漏洞
profile profiling : profiler hotspot
trace span : traces spans tracing 链路
metrics query : latency percentile p95 p99 throughput 指标 延迟
reasoning thinking step : reason think ponder 推理 思考
device simulator emulator : phone iphone ipad android 手机 模拟器
application app : 应用
process list : processes running 进程
elevation : altitude height altura hohe 海拔 高度
sample rows : example examples few 样本
required argument : mandatory must compulsory 必填
holiday vacation office : away leave urlaub vacances vacaciones 休假 假期
archive label : archived 归档
mail rule filter : automatically 自动
reference definition symbol : calls callers callees references uses usages mention mentions 引用 调用
record activity history : past recent recently lately 最近
"""


def _read() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Single words and phrases, each with what it stands for and how surely."""
    single: dict[str, dict[str, float]] = {}
    phrases: dict[str, dict[str, float]] = {}
    for line in LINES.strip().splitlines():
        left, _, right = line.partition(" : ")
        tools, people = left.split(), right.split()
        for word in people:
            place = single if word.isascii() else phrases
            for at, tool in enumerate(tools):
                _note(place, word, tool, (0.6 if word.isascii() else 1.0) * 0.85**at)
        for word in tools:
            for other in tools:
                if other != word:
                    _note(single, word, other, 0.5)
    return single, dict(sorted(phrases.items(), key=lambda item: (-len(item[0]), item[0])))


def _note(place: dict[str, dict[str, float]], word: str, tool: str, weight: float) -> None:
    known = place.setdefault(word, {})
    known[tool] = max(known.get(tool, 0.0), weight)


SYNONYMS, PHRASES = _read()
