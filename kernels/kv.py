"""Keys and values of new tokens go to their places in a paged cache: the definition.

Suffixes: T tokens, G heads of keys and values, E head dimension, N blocks, P places of a block.
"""

from __future__ import annotations

import torch


def store_kv(k_TGE: torch.Tensor, v_TGE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, slots_T: torch.Tensor) -> None:
    """Token t's key and value are written to place slot mod P of block slot div P. Slots outside the cache are skipped, -1 on
    purpose.

    Args:
        k_TGE, v_TGE: any of the float dtypes; rounded to the dtype of the cache.
        k_NPGE, v_NPGE: the cache; blocks may be strided (keys and values of a block side by side), the rest is contiguous.
        slots_T: int32 or int64, all different.

    Raises:
        ValueError: shapes do not fit, or a block is not contiguous.
    """
    check(k_TGE, v_TGE, k_NPGE, v_NPGE, slots_T)
    places = k_NPGE.shape[1]
    kept = (slots_T >= 0) & (slots_T < len(k_NPGE) * places)
    slot = slots_T[kept].long()
    block, place = slot.div(max(places, 1), rounding_mode="floor"), slot % max(places, 1)
    k_NPGE[block, place] = k_TGE[kept].to(k_NPGE.dtype)
    v_NPGE[block, place] = v_TGE[kept].to(v_NPGE.dtype)


def check(k_TGE: torch.Tensor, v_TGE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, slots_T: torch.Tensor) -> None:
    """Whether shapes and strides fit. ValueError if not."""
    fits = k_TGE.dim() == 3 and k_TGE.shape == v_TGE.shape and k_NPGE.dim() == 4 and k_NPGE.shape == v_NPGE.shape
    if not fits or k_NPGE.shape[2:] != k_TGE.shape[1:] or slots_T.shape != k_TGE.shape[:1]:
        new, cache = f"k {tuple(k_TGE.shape)}, v {tuple(v_TGE.shape)}", f"cache {tuple(k_NPGE.shape)}, {tuple(v_NPGE.shape)}"
        raise ValueError(f"store_kv: {new}, {cache}, slots {tuple(slots_T.shape)} do not fit [T, G, E], [N, P, G, E], [T]")
    for name, cache_NPGE in (("k", k_NPGE), ("v", v_NPGE)):
        if len(cache_NPGE) and not cache_NPGE[0].is_contiguous():
            raise ValueError(f"store_kv: a block of the {name} cache has strides {cache_NPGE.stride()[1:]}, contiguous is needed")
