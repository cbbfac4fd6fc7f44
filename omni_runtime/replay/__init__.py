"""Record what a core is fed, and feed it again."""

from omni_runtime.replay.log import Recording, RecordLog
from omni_runtime.replay.play import Replayed, play

__all__ = ["RecordLog", "Recording", "Replayed", "play"]
