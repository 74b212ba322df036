"""People whose browser is at another machine: they paste the address that it ended at."""

import asyncio

import toolbay


class FarAway:
    """Whoever logs in (a `toolbay.Pasting`)."""

    def __init__(self) -> None:
        self._page: toolbay.Page | None = None

    async def go(self, page: toolbay.Page) -> None:
        self._page = page
        print(f"To use {page.server}, log in at {page.host}: {page.url}", flush=True)

    async def pasted(self) -> str:
        assert self._page is not None
        while True:
            try:
                address = await asyncio.to_thread(input, "The address that your browser ended at: ")
            except EOFError:
                print("Nobody can paste an address here: only a browser at this machine can end this login now.")
                return ""
            if not (fault := self._page.fault(address)):
                return address
            print(fault)


async def main(server: str, path: str = "toolbay.yaml") -> None:
    async with toolbay.App.load(path, only=[server]) as app:
        try:
            status = await app.login(server, FarAway())
        except toolbay.ToolbayError as error:
            print(error)
        else:
            print(f"{server}: logged in at {status.issuer}")


if __name__ == "__main__":
    asyncio.run(main("board"))
