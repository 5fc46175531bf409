"""Every error the engine raises on purpose. Permanent: the same start fails again; temporary: another try may succeed.

EngineError
├── TooLittleMemory            the KV arena cannot hold one sequence of the longest length; permanent
├── NoDevice                   torch cannot use the device that was asked for; permanent
├── KernelFailed               a kernel cannot be compiled or started on this device; permanent
├── UnusableFormat             a number format that what computes here does not have; permanent
├── UnusableProfile            a file that is no profile of a worker; permanent
├── StartFailed                the core said why it will never start; permanent
├── RequestRejected            a request that is not taken (`scheduler.limits`); its code says which it is
└── ModelError                 the model given cannot be served; said before anything serves; permanent
    ├── ModelNotFound          no such file or folder, or a part of it is missing
    ├── CorruptModel           a file is truncated, has a bad header or contradicts itself
    ├── UnsupportedModel       an architecture or a setting of it that the engine does not compute
    ├── UnsupportedFormat      a tensor's number format or quantization that the engine does not read
    └── TensorError            a tensor of the model
        ├── MissingTensor      is not in the files
        └── WrongShape         does not have the shape that the model's config asks for

What is wrong with a flag is a SettingsError of the protocol, as in every process.
"""


class EngineError(Exception):
    """Base of the tree above."""

    permanent = False


class StartFailed(EngineError):
    """The core cannot start with these settings and this model, however often it is tried. The text says why."""

    permanent = True


class NoDevice(EngineError):
    """torch cannot use the device that was asked for. The text says which it is."""

    permanent = True


class KernelFailed(EngineError):
    """A kernel cannot be compiled or started on this device. The text has the compiler's words."""

    permanent = True


class UnusableFormat(EngineError):
    """A number format that what computes here does not have. The text says which ones it has."""

    permanent = True


class UnusableProfile(EngineError):
    """The file is no profile of a worker. The text names it and says what is wrong in it."""

    permanent = True


class TooLittleMemory(EngineError, ValueError):
    """The KV arena cannot hold one sequence of the longest length. The text says what would be enough."""

    permanent = True


class ModelError(EngineError):
    """The model given cannot be served. The text names the file, what is wrong and what is allowed."""

    permanent = True


class ModelNotFound(ModelError):
    pass


class CorruptModel(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass


class UnsupportedFormat(ModelError):
    pass


class TensorError(ModelError):
    pass


class MissingTensor(TensorError):
    pass


class WrongShape(TensorError):
    pass
