"""A program whose people log in to servers: they are led to a page, and the browser comes back to this machine."""

import asyncio

import toolbay


class AtTerminal:
    """Whoever logs in (a `toolbay.Person`)."""

    async def go(self, page: toolbay.Page) -> None:
        print(f"To use {page.server}, log in at {page.host}: {page.url}", flush=True)


async def main(path: str = "toolbay.yaml") -> None:
    async with toolbay.App.load(path) as app:
        await app.settle()
        for name in [name for name, server in app.servers.items() if server.state == "needs_auth"]:
            try:
                status = await app.login(name, AtTerminal())
            except toolbay.ToolbayError as error:
                print(error)
            else:
                print(f"{name}: logged in at {status.issuer}, renews itself: {status.renews}")
        await app.settle()
        for name, server in app.servers.items():
            print(f"{name}: {server.state}, {server.tools} tools")


if __name__ == "__main__":
    asyncio.run(main())
