"""Ask a Qwen3-Omni, end to end.

python examples/qwen3_omni/end2end.py --query-type use_mixed_modalities --stream --stats
python examples/qwen3_omni/end2end.py --checkpoint /models/Qwen3-Omni-30B-A3B-Instruct -q use_image --image cat.png
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "omni"))

from asking import Family, main
from omni_runtime.cards.qwen3_omni import qwen3_omni

if __name__ == "__main__":
    sys.exit(main(Family("Qwen3-Omni", qwen3_omni, "qwen3-omni", 12.5)))
