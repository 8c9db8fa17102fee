"""The model being served: its engine's facts and its token codec, loaded when the engine first answers."""

import asyncio
from dataclasses import dataclass, field

from dragoman.addons.bridge import probe
from dragoman.addons.engine import Engine, EngineInfo
from dragoman.addons.errors import DragomanError
from dragoman.addons.settings import Settings
from dragoman.addons.tokens import TokenCodec


@dataclass(frozen=True, slots=True)
class Served:
    info: EngineInfo
    codec: TokenCodec
    bridges: dict[str, str]
    """Kind of new message → ``exact``, or why calls of that kind are rendered in full (see ``bridge.probe``)."""


@dataclass(slots=True)
class ServedModel:
    """Loads once and remembers. Every call that comes before the engine is up asks it again."""

    engine: Engine
    settings: Settings
    _served: Served | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def peek(self) -> Served | None:
        """What is loaded, if anything is."""
        return self._served

    async def get(self) -> Served:
        """Raises ``Overloaded`` while the engine cannot be reached, ``DragomanError`` when its model cannot be read."""
        if self._served is None:
            async with self._lock:
                if self._served is None:
                    self._served = await self._load()
        return self._served

    async def _load(self) -> Served:
        info = await self.engine.info()
        model = self.settings.model or info.root
        try:
            codec = await asyncio.to_thread(TokenCodec.load, model, renderer=self.settings.renderer)
        except (OSError, ValueError) as error:
            raise DragomanError(
                f"cannot load the tokenizer of model {model!r}: {error}; name its folder with --model"
            ) from error
        return Served(info, codec, await asyncio.to_thread(probe, codec, self.settings.thinking))
