"""All errors that the engine raises on purpose. All but RequestRejected, ProfileFailed and AdapterFailed are permanent:
the same start fails again.

EngineError
├── TooLittleMemory            the KV arena cannot hold one sequence of the maximum length
├── NoDevice                   torch cannot use the requested device
├── KernelFailed               a kernel cannot be compiled or started on this device
├── UnusableFormat             this backend does not support the number format
├── UnusableProfile            the file is not a profile of a worker
├── ProfileFailed              steps cannot be recorded
├── StartFailed                the core reported why it can never start
├── AdapterFailed              a rank cannot hold an adapter
├── RequestRejected            a rejected request (`scheduler.requests.limits`), with a code
└── ModelError                 the model cannot be served; raised before the worker serves
    ├── ModelNotFound          no such file or folder, or a part of it is missing
    ├── CorruptModel           a file is truncated, has a bad header or contradicts itself
    ├── UnsupportedModel       an architecture, or a setting of it, that the engine does not compute
    ├── DifferentTokens        a draft model has other tokens than its model
    ├── UnsupportedFormat      a tensor's number format or quantization that the engine does not read
    └── TensorError            a tensor of the model
        ├── MissingTensor      is not in the files
        └── WrongShape         does not have the shape that the model's config requires

Wrong flags raise the protocol's SettingsError, as in every process.
"""


class EngineError(Exception):
    """Base of the tree above."""


class StartFailed(EngineError):
    """The core can never start with these settings and this model. The text says why."""


class AdapterFailed(EngineError):
    """A rank cannot hold an adapter. The text names the rank and the reason."""


class NoDevice(EngineError):
    """torch cannot use the requested device. The text names it."""


class KernelFailed(EngineError):
    """A kernel cannot be compiled or started on this device. The text has the compiler's message."""


class UnusableFormat(EngineError):
    """The backend does not support the number format. The text lists supported ones."""


class UnusableProfile(EngineError):
    """The file is not a profile of a worker. The text names the file and the fault."""


class ProfileFailed(EngineError):
    """Steps cannot be recorded, or the trace cannot be written. The text says why."""


class TooLittleMemory(EngineError, ValueError):
    """The KV arena cannot hold one sequence of the maximum length. The text says how much memory is enough."""


class ModelError(EngineError):
    """The model cannot be served. The text names the file, the fault and the allowed values."""


class ModelNotFound(ModelError):
    pass


class CorruptModel(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass


class UnsupportedFormat(ModelError):
    pass


class DifferentTokens(ModelError):
    pass


class TensorError(ModelError):
    pass


class MissingTensor(TensorError):
    pass


class WrongShape(TensorError):
    pass
