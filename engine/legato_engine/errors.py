"""Every error the engine raises on purpose.

EngineError
└── ModelError                 the model given cannot be served; said before anything serves; permanent
    ├── ModelNotFound          no such file or folder, or a part of it is missing
    ├── CorruptModel           a file is truncated, has a bad header or contradicts itself
    ├── UnsupportedModel       an architecture or a setting of it that the engine does not compute
    ├── UnsupportedFormat      a tensor's number format or quantization that the engine does not read
    └── TensorError            a tensor of the model
        ├── MissingTensor      is not in the files
        └── WrongShape         does not have the shape that the model's config asks for
"""


class EngineError(Exception):
    """Base of the tree above."""


class ModelError(EngineError):
    """The model given cannot be served. The text names the file, what is wrong and what is allowed."""


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
