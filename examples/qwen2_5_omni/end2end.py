"""Ask a Qwen2.5-Omni, end to end.

python examples/qwen2_5_omni/end2end.py --query-type use_mixed_modalities --stream --stats
python examples/qwen2_5_omni/end2end.py --checkpoint /models/Qwen2.5-Omni-7B -q use_image --image cat.png
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "omni"))

from asking import Family, main
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni

if __name__ == "__main__":
    sys.exit(main(Family("Qwen2.5-Omni", qwen2_5_omni, "qwen2_5-omni", 50)))
