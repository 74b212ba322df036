"""What servers offer to people rather than to models: prompts to fill in, resources to read."""

from __future__ import annotations

from dataclasses import dataclass

from toolbay._lenient import as_objects, as_text
from toolbay._text import clean, line
from toolbay.types import Json
from toolbay.upstream.listing import Listing


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptInfo:
    """A prompt that a server offers to people. `arguments` have `name`, `description` and `required`."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    arguments: tuple[Json, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceInfo:
    """A resource, or a template of resources, that a server offers."""

    server: str
    name: str
    uri: str
    title: str = ""
    description: str = ""
    media_type: str = ""
    template: bool = False


def prompts_of(server: str, listing: Listing) -> list[PromptInfo]:
    """The prompts that a server lists."""
    return [
        PromptInfo(
            server=server,
            name=item["name"],
            title=line(as_text(item.get("title")), 200),
            description=clean(as_text(item.get("description"))),
            arguments=tuple(_argument(entry) for entry in as_objects(item.get("arguments"))),
        )
        for item in listing.prompts
    ]


def resources_of(server: str, listing: Listing) -> list[ResourceInfo]:
    """The resources and templates that a server lists; those that name no URI are none."""
    found = [_resource(server, item, "uri") for item in listing.resources if as_text(item.get("uri"))]
    return [*found, *(_resource(server, item, "uriTemplate") for item in listing.templates if as_text(item.get("uriTemplate")))]


def _resource(server: str, item: Json, key: str) -> ResourceInfo:
    return ResourceInfo(
        server=server,
        name=item["name"],
        uri=item[key],
        title=line(as_text(item.get("title")), 200),
        description=clean(as_text(item.get("description"))),
        media_type=line(as_text(item.get("mimeType")), 100),
        template=key == "uriTemplate",
    )


def _argument(entry: Json) -> Json:
    described = clean(as_text(entry.get("description")))
    return {"name": as_text(entry.get("name")), "description": described, "required": entry.get("required") is True}
