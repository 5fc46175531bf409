"""A CUDA device as hand-offs see it. Only the door to it: what waits for what is in `put_queue` and `receiver`."""

import torch


class CudaEvent:
    """Implements `DeviceEvent`: all that was begun on the current stream of `device` until now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]
