"""What happens while it happens: servers that come and go, and calls with their outcome."""

import asyncio

import toolbay
from toolbay.events import CallFinished, Event, ServerChanged


def tell(event: Event) -> None:
    if isinstance(event, ServerChanged):
        again = "" if event.retry_in is None else f", tried again in {event.retry_in:.0f} s"
        print(f"{event.server} is {event.state}{again} {event.error}".rstrip())
    elif isinstance(event, CallFinished):
        print(f"{event.tool} took {event.seconds:.1f} s: {event.outcome.value}")


async def main(path: str = "toolbay.yaml") -> None:
    app = toolbay.App.load(path)
    with app.events.listen(tell):  # called at once, so it must be quick; `async for event in` app.events.subscribe() has its own pace
        async with app:
            await app.settle()
            for name, server in app.servers.items():
                print(f"{name}: {server.state}, {server.tools} tools")
            await app.call("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})


if __name__ == "__main__":
    asyncio.run(main())
