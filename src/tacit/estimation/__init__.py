"""Personal estimates for many small clients, privately: shrinkage in scikit-learn's manner.

`__init__.pyi` is the table of names; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
