"""Arithmetic and comparison, defined to refuse; and what arrays of other libraries have, with the verb that does it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..base.advice import ARRAY, advise

if TYPE_CHECKING:

    class _Advice:
        """Type checkers are told of none of these names."""

        __slots__ = ()

else:
    _Advice = advise(ARRAY, "allocation like open_device put stream_in_force")


class _OfTheClass:
    """An attribute that is None in the class, and not there in its objects."""

    def __get__(self, instance: object, owner: type | None = None) -> None:
        if instance is not None:
            raise AttributeError(f"a {type(instance).__name__} has no __array_ufunc__: its class has, which is None")


class Operators(_Advice):
    """Arithmetic and comparison, defined to refuse: devmem moves arrays and computes nothing.

    With ``__array_ufunc__ = None`` alone NumPy would step back and ``ndarray == device`` would silently be False.

    NumPy looks the attribute up in the class, as Python does special methods. Dask looks at the object, and takes one that has
    it, even as None, for an array that computes: so objects do not have it, and Dask converts them to ndarrays. Others that
    look at the object go by the priority then, and let these operators refuse.
    """

    __slots__ = ()
    __array_ufunc__ = _OfTheClass()
    __array_priority__ = 1e6
    __hash__ = None  # type: ignore[assignment]  # a method for type checkers; this is how Python says that there is none

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "devmem arrays have no arithmetic or comparison: use copy_to_host() and NumPy, or give the array to a library "
            "that computes on the device (from_dlpack)"
        )

    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __mul__ = __rmul__ = __imul__ = _refuse
    __truediv__ = __rtruediv__ = __itruediv__ = __floordiv__ = __rfloordiv__ = __ifloordiv__ = _refuse
    __mod__ = __rmod__ = __imod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __ipow__ = _refuse
    __matmul__ = __rmatmul__ = __imatmul__ = __lshift__ = __rlshift__ = __ilshift__ = _refuse
    __rshift__ = __rrshift__ = __irshift__ = __and__ = __rand__ = __iand__ = __or__ = __ror__ = __ior__ = _refuse
    __xor__ = __rxor__ = __ixor__ = __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = _refuse
