"""The tool layer alone, for a loop of your own: definitions that every provider takes, and calls that never raise."""

import toolbay


async def definitions(app: toolbay.App) -> list[dict[str, object]]:
    return [
        {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}
        for tool in app.registry.tools.values()
    ]


async def run(app: toolbay.App, name: str, arguments: str) -> str:
    result = await app.call(name, arguments)  # the JSON text just as the model wrote it: mended where plain, checked, then sent
    if result.outcome is toolbay.Outcome.UNKNOWN:
        print(f"nobody knows whether {name} took effect")
    return result.text
