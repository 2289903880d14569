"""Numbers of a device on the host, for one wait."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, bit for bit; a GPU is waited for once, not once each.

    They travel as the bytes of one array, those of the widest dtypes first, so that every one of
    them begins where its dtype may. On the CPU they are handed back as they are.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    as_bytes = [tensors[i].contiguous().flatten().view(torch.uint8) for i in order]
    arrived = torch.cat(as_bytes).cpu().split([len(one) for one in as_bytes])
    found = dict(zip(order, arrived, strict=True))
    return [found[i].view(t.dtype).view(t.shape) for i, t in enumerate(tensors)]
