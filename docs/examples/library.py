"""Any server's tools, by hand and through the agent."""

import asyncio

import toolbay


async def main(path: str = "toolbay.yaml") -> None:
    async with toolbay.App.load(path) as app:
        await app.settle()
        print(*app.registry.tools, sep="\n")
        result = await app.call("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})
        print(result.text, result.is_error)
        turn = await app.ask("What time is it in Tokyo?")
        print(turn.text)


if __name__ == "__main__":
    asyncio.run(main())
