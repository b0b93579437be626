"""A batch that does not fit into memory is halved and run again; how much is free; how arrays get to a GPU and back."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from biasgeom.models import LanguageModel

T = TypeVar("T")


class NotEnoughMemory(MemoryError):
    """Not even the smallest batch fits; the message names the model, the batch and the ways out."""


class Budget:
    """Tokens a batch may have; halved for good when a batch does not fit.

    Parameters
    ----------
    lm : LanguageModel
        Whose passes are run.
    tokens : int
    """

    def __init__(self, lm: LanguageModel, tokens: int) -> None:
        self.lm, self.tokens = lm, tokens

    def pieces(self, run: Callable[[int, int], T], sizes: Sequence[int]) -> Iterator[T]:
        """Run n items in order, as many together as the budget allows; those that do not fit again, half of them first.

        Parameters
        ----------
        run : callable
            Gets the first item's place and the one after the last; what it returns is yielded. It must leave nothing
            behind when it raises.
        sizes : list of int, length n
            Tokens of each item, of which the first one's count for all in a piece; an item beyond the budget goes
            alone.

        Raises
        ------
        NotEnoughMemory
            A single item did not fit.
        """
        start = 0
        while start < len(sizes):
            count = min(max(1, self.tokens // sizes[start]), len(sizes) - start)
            try:
                result = run(start, start + count)
            except (RuntimeError, MemoryError) as error:
                if not exhausted(error):
                    raise
                if count == 1:
                    raise NotEnoughMemory(
                        f"{self.lm.name} in {self.lm.dtype}: not even a batch of {sizes[start]} tokens, the smallest "
                        f"here, fits into the memory of {self.lm.device}. End what else uses it, load the model in "
                        "bfloat16, spread it over several GPUs (device='auto'), or take shorter texts"
                    ) from error
            else:
                start += count
                yield result
                del result  # or it would lie beside the next one
                continue
            # Only now: until its handler ended, the error held the frames of the pass, and these its tensors.
            clear_device_cache(garbage_collection=True)
            self.tokens = count // 2 * sizes[start]


def exhausted(error: BaseException) -> bool:
    """Whether an error says that a device or the host is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # cuBLAS takes its workspace past PyTorch's allocator.
    return should_reduce_batch_size(error) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)


def free(lm: LanguageModel) -> int:
    """Bytes that a model's GPU can still give, what PyTorch holds and does not use included; the least of several."""
    devices = {weight.device for weight in lm.model.parameters() if weight.device.type == "cuda"}
    return min(
        torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        for device in devices
    )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on another device; to a GPU from pinned memory, so that nobody waits for it."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array; from a GPU in one transfer into pinned memory."""
    if tensor.device.type != "cuda":
        return tensor.cpu().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host.numpy()
