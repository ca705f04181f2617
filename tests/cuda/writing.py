"""Keys and values written to pages by `rope_append`, unturned."""

from __future__ import annotations

import torch

from lmprog.runtime.engine.device.driver import TYPE_NAMES
from lmprog.runtime.engine.device.kernels import NUM_COUNTS, Count, Kernels, RopeArgs, address
from tests.cuda.attending import ints, placed

_PAGE_SHIFT = 4


def written(
    kernels: Kernels, keys: torch.Tensor, values: torch.Tensor, scales: tuple[float, float]
) -> torch.Tensor:
    """What stands in the slots of tokens 0, 1, 2 ... afterwards. keys, values [tokens, kv_heads,
    dim] -> [2, tokens, kv_heads, dim] e4m3
    """
    driver, dim = kernels.driver, kernels.key.head_dim
    dtype = next(one for one, name in TYPE_NAMES.items() if name == kernels.key.type_name)
    tokens, kv_heads, _ = keys.shape
    qkv = torch.cat((torch.zeros(tokens, 1, dim), keys, values), 1).to(dtype)
    turns = torch.zeros(1, dim // 2, 2)
    turns[..., 0] = 1.0  # an angle of 0
    num_pages = -(-tokens // (1 << _PAGE_SHIFT))
    counts = torch.zeros(NUM_COUNTS, dtype=torch.int32)
    counts[[Count.TOKENS, Count.WRITES]] = tokens
    held = {
        "qkv": placed(driver, qkv),
        "rotations": placed(driver, turns),
        "positions": ints(driver, [0] * tokens),
        "write_tokens": ints(driver, range(tokens)),
        "write_slots": ints(driver, range(tokens)),
        "counts": placed(driver, counts),
        "q": driver.memory(tokens * dim * dtype.itemsize),
        "kv": driver.memory((num_pages * 2 * kv_heads * dim) << _PAGE_SHIFT),
    }
    args = RopeArgs(
        **{name: address(tensor) for name, tensor in held.items()},
        heads=1,
        kv_heads=kv_heads,
        page_shift=_PAGE_SHIFT,
        eps=0.0,
        key_factor=1.0 / scales[0],
        value_factor=1.0 / scales[1],
    )
    kernels.launch("rope_append", args)
    driver.event().wait()
    pages = held["kv"].view(num_pages, 2, kv_heads, 1 << _PAGE_SHIFT, dim)
    slots = pages.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :tokens]  # [2, slots, kv_heads, dim]
    return slots.contiguous().view(torch.float8_e4m3fn)
