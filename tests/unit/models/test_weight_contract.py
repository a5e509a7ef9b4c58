"""What a split backward asks of its module and of what is registered: else whole, or refused, never silently wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, weight_norm
from torch.utils.checkpoint import checkpoint

from fullbore.errors import ModelError
from fullbore.models.sequential import sequential_model
from fullbore.models.split_backward import norm_splits, weight_registry
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_contract import checked_gradients
from fullbore.models.split_backward.weight_queue import WeightQueue
from fullbore.models.split_backward.weight_registry import apply_weight_splits, register_weight_split, split_of
from fullbore.models.split_backward.weight_split import WeightSplit
from tests.support.staged import Staged


@pytest.fixture(autouse=True)
def _registered_for_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the norms of these tests were large; and the registry is put back."""
    monkeypatch.setattr(norm_splits, "SMALLEST_NORM", 1)
    monkeypatch.setattr(weight_registry, "_RULES", dict(weight_registry._RULES))


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2.0


class Weighted(nn.Linear):
    """Without a bias of its own."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.in_features = self.out_features = 6
        self.weight = nn.Parameter(torch.randn(6, 6))


class Property(Weighted):
    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        return self.weight[:, 0]


class Attribute(Weighted):
    bias = torch.ones(6)  # type: ignore[assignment]


def buffered(module: nn.Module) -> None:
    del module.bias
    module.register_buffer("bias", torch.ones(6))


def plain(module: nn.Module) -> None:
    del module.bias
    module.bias = torch.ones(6)


def shadowed(module: nn.Module) -> None:
    vars(module)["bias"] = torch.ones(6)


def doubled(name: str) -> Callable[[nn.Module], object]:
    return lambda module: parametrize.register_parametrization(module, name, Double())


def doubled_both(module: nn.Module) -> None:
    doubled("weight")(module)
    doubled("bias")(module)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "a buffer": buffered,
    "a plain tensor": plain,
    "a tensor before the parameter": shadowed,
    "a parametrized bias": doubled("bias"),
    "a parametrized weight": doubled("weight"),
    "both parametrized": doubled_both,
}
LINEAR_CHANGES: dict[str, Callable[[nn.Module], object]] = {
    **CHANGES,
    "spectral norm": parametrizations.spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "the old weight norm": weight_norm,
}
WHOLE: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], object]]] = {
    **{f"linear, {name}": (lambda: nn.Linear(6, 6), change) for name, change in LINEAR_CHANGES.items()},
    **{f"layer norm, {name}": (lambda: nn.LayerNorm(6), change) for name, change in CHANGES.items()},
    "linear, a property": (Property, lambda _: None),
    "linear, an attribute of the class": (Attribute, lambda _: None),
}


def squares(output: Tensor) -> Tensor:
    return output.square().sum()


def taught(
    model: nn.Module,
    deferral: Deferral | None,
    *,
    steps: int = 2,
    loss_of: Callable[[Tensor], Tensor] = squares,
) -> list[Tensor]:
    """Losses, gradients and buffers of a model, after backwards in two halves if there is a deferral."""
    found = []
    for step in range(steps):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), requires_grad=True)
        if deferral is None:
            loss = loss_of(model(x))
            loss.backward()
        else:
            deferral.begin()
            with deferral.during():
                loss = loss_of(model(x))
            queue = WeightQueue()
            with deferral.during(queue):
                loss.backward()
            queue.run()
        assert x.grad is not None
        found += [loss.detach(), x.grad]
    for weight in model.parameters():
        found.append(torch.zeros(0) if weight.grad is None else weight.grad)
    return [*found, *model.buffers()]


def assert_same(made: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("late", [False, True])
def test_a_module_whose_weight_is_no_parameter_of_its_own_stays_whole(name: str, late: bool) -> None:
    """The bias was taken for absent. ``late``: after the pipeline was built, before a step."""
    make, change = WHOLE[name]
    torch.manual_seed(3)
    module = make()
    start = copy.deepcopy(module)
    deferral = Deferral()
    if late:
        model = nn.Sequential(module)
        apply_weight_splits(model, deferral)
        change(module)
    else:
        change(module)
        model = nn.Sequential(module)
        _, whole = apply_weight_splits(model, deferral)
        assert whole == {type(module).__name__: 1}
    change(start)
    for target, source in zip(model.buffers(), start.buffers(), strict=True):
        target.copy_(source)  # spectral norm draws its own
    assert_same(taught(model, deferral), taught(nn.Sequential(start), None))


def test_a_weight_that_is_set_to_none_is_absent_and_the_rest_is_split() -> None:
    module: Any = nn.Linear(6, 6)
    module.bias = None
    plainly: Any = nn.Linear(6, 6)
    del plainly.bias
    plainly.bias = None
    deferral = Deferral()
    model = nn.Sequential(module, plainly)
    reference = copy.deepcopy(model)
    _, whole = apply_weight_splits(model, deferral)
    assert whole == {}
    assert_same(taught(model, deferral), taught(reference, None))
    with deferral.during():
        assert model(torch.ones(1, 6)).grad_fn.name() == "_OperationBackward"


class Penalized(nn.Module):
    """Its output depends on the gradient of a part's output for its input."""

    def __init__(self, part: nn.Module, *, create_graph: bool) -> None:
        super().__init__()
        self.part = part
        self.create_graph = create_graph

    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.part(x).square().sum(), x, create_graph=self.create_graph)
        return x + gradient


class Reentrant(nn.Module):
    """Its recomputation runs a backward inside of the schedule's."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.part, x, use_reentrant=True)
        return made


def test_a_backward_inside_of_the_schedules_own_is_part_of_it() -> None:
    deferral = Deferral()
    model = nn.Sequential(nn.Linear(6, 6), Reentrant())
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(taught(model, deferral), taught(reference, None))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ScaleSplit(WeightSplit):
    def run(self, x: Any, weights: Any, wanted: Any) -> Any:
        return x * weights[0], (x,)

    def weight_gradients(self, gradient: Any, kept: Any, wanted: Any) -> Any:
        return ((gradient * kept[0]).flatten(0, -2).sum(0),)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", [nn.Linear, Scale])
def test_a_layer_that_differentiates_by_itself_is_refused_and_exact_once_the_class_is_whole(
    kind: type[nn.Module], create_graph: bool, recompute: bool
) -> None:
    """An operation (Linear), a note or, where something is recomputed, a tap (Scale)."""
    register_weight_split(Scale, ScaleSplit)
    batch = {"inputs": torch.randn(4, 6), "targets": torch.randn(4, 6)}

    def trained(*, split: bool) -> tuple[float, dict[str, Tensor]]:
        torch.manual_seed(4)
        part = nn.Linear(6, 6) if kind is nn.Linear else Scale()
        model = nn.Sequential(nn.Linear(6, 6), Penalized(part, create_graph=create_graph))
        staged = Staged(sequential_model(model), [0, 1, 2], split=split, recompute=("1",) if recompute else ())
        loss = staged.step([[batch]])
        return loss, staged.store.gradients()

    with pytest.raises(ModelError) as caught:
        trained(split=True)
    assert str(caught.value) == (
        f"the backward of this {kind.__name__} is split, and something differentiates it besides the schedule "
        "(torch.autograd.grad or backward inside of a layer or loss), which needs a whole one; call "
        f"fullbore.register_weight_split({kind.__name__}, None) before the pipeline is built, or use a schedule "
        "without W"
    )
    register_weight_split(kind, None)
    (loss, made), (expected_loss, expected) = trained(split=True), trained(split=False)
    assert loss == expected_loss
    assert_same(list(made.values()), list(expected.values()))
    if create_graph:
        assert expected["1.part.weight"].abs().max() > 0


def test_what_was_registered_can_be_taken_back() -> None:
    register_weight_split(Scale, ScaleSplit)
    assert split_of(Scale()) is ScaleSplit
    register_weight_split(Scale, None)
    register_weight_split(Scale, None)
    assert split_of(Scale()) is None


def scaled_by(factor: float, *, default: float | None = None) -> type[nn.Module]:
    """Classes whose forwards have the same code and do not compute the same."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        if default is None:

            def forward(self, x: Tensor) -> Tensor:
                return x * self.weight * factor

        else:

            def forward(self, x: Tensor, by: float = default) -> Tensor:
                return x * self.weight * by

    return Scaled


@pytest.mark.parametrize(
    ("one", "other"),
    [(scaled_by(1.0), scaled_by(2.0)), (scaled_by(0.0, default=1.0), scaled_by(0.0, default=2.0))],
    ids=["closed over", "default"],
)
def test_a_forward_of_the_same_code_is_another_where_it_computes_something_else(
    one: type[nn.Module], other: type[nn.Module]
) -> None:
    register_weight_split(one, ScaleSplit)
    assert split_of(one()) is ScaleSplit
    assert split_of(other()) is None
    register_weight_split(other, None)
    assert split_of(one()) is ScaleSplit


def test_a_split_that_cannot_be_made_leaves_every_module_as_it_was() -> None:
    class Fails(ScaleSplit):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            raise KeyError("scale")

    register_weight_split(Scale, Fails)
    model = nn.Sequential(nn.Linear(3, 3), Scale())
    with pytest.raises(
        ModelError, match=r"^Fails cannot be made for a module of class Scale \(KeyError: 'scale'\); its constructor"
    ):
        apply_weight_splits(model, Deferral())
    assert all("forward" not in vars(module) for module in model.modules())


class NoForward(nn.Module):
    pass


def splitting(**members: Any) -> type[WeightSplit]:
    return type("OddSplit", (ScaleSplit,), members)


@pytest.mark.parametrize("kind", [nn.Module, NoForward])
def test_a_class_without_a_forward_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ModelError, match=r"a module class that has a forward \(given <class '.*Module'>\)|NoForward"):
        register_weight_split(kind, ScaleSplit)


@pytest.mark.parametrize("names", ["weight", (), None, ("weight", "weight"), (1,), ["weight"], ("a.b",)])
def test_names_of_weights_are_a_tuple_of_names(names: object) -> None:
    with pytest.raises(
        ModelError, match=r"^OddSplit\.parameters is a tuple of the names .* as in \('weight',\) \(given"
    ):
        register_weight_split(Scale, splitting(parameters=names))


def test_a_split_has_both_halves() -> None:
    class Half(WeightSplit):
        def run(self, x: Any, weights: Any, wanted: Any) -> Any: ...

    with pytest.raises(ModelError, match=r"^Half lacks weight_gradients, which"):
        register_weight_split(Scale, Half)


def test_a_name_that_the_module_does_not_know_is_refused_before_anything_is_wrapped() -> None:
    register_weight_split(Scale, splitting(parameters=("wieght",)))
    model = nn.Sequential(nn.Linear(6, 6), Scale())
    with pytest.raises(
        ModelError,
        match=r"^OddSplit\.parameters names 'wieght', and this Scale has nothing of that name \(its weights: weight\)",
    ):
        apply_weight_splits(model, Deferral())
    assert all("forward" not in vars(part) for part in model)


RUN = r"^OddSplit\.run gives two things, the output and a tuple of the tensors that weight_gradients needs \(given "
MADE = (
    r"^OddSplit\.weight_gradients gives a tuple of one tensor for each weight that trains, of its shape: weight \[6\] "
)


def returning(run: Callable[[Tensor, Any], object]) -> type[WeightSplit]:
    return splitting(run=lambda self, x, weights, wanted: run(x, weights))


def making(make: Callable[[Tensor], object]) -> type[WeightSplit]:
    return splitting(weight_gradients=lambda self, gradient, kept, wanted: make(gradient))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (returning(lambda x, w: x * w[0]), RUN + r"a tensor \[4, 6\]\)"),
        (returning(lambda x, w: (x * w[0], None)), RUN + r"tuple of 2: a tensor \[4, 6\], None\)"),
        (returning(lambda x, w: (x * w[0], 3)), RUN + r"tuple of 2: a tensor \[4, 6\], int\)"),
        (returning(lambda x, w: (x * w[0], x)), RUN + r"tuple of 2: a tensor \[4, 6\], a tensor \[4, 6\]\)"),
        (returning(lambda x, w: (x * w[0], (x, None))), RUN + r".*tuple of 2: a tensor \[4, 6\], None\)"),
        (returning(lambda x, w: None), RUN + r"None\)"),
        (
            returning(lambda x, w: ((x * w[0]).detach(), (x,))),
            r"^OddSplit\.run gives an output without a gradient, although its input has one: nothing before it would",
        ),
        (making(lambda gradient: ()), MADE + r"\(given nothing\)"),
        (making(lambda gradient: None), MADE + r"\(given None\)"),
        (making(lambda gradient: (None,)), MADE + r"\(given tuple of 1: None\)"),
        (making(lambda gradient: gradient.sum(0)), MADE + r"\(given a tensor \[6\]\)"),
        (making(lambda gradient: (gradient.sum(0),) * 2), MADE + r"\(given tuple of 2: a tensor \[6\], a tensor \[6\]"),
        (making(lambda gradient: (gradient.sum().reshape(1),)), MADE + r"\(given tuple of 1: a tensor \[1\]\)"),
        (making(lambda gradient: (gradient,)), MADE + r"\(given tuple of 1: a tensor \[4, 6\]\)"),
    ],
)
def test_what_a_split_gives_has_to_fit(split: type[WeightSplit], message: str) -> None:
    """A broadcast gradient and a detached output were taken as they were."""
    register_weight_split(Scale, split)
    deferral = Deferral()
    model = nn.Sequential(nn.Linear(6, 6), Scale())
    apply_weight_splits(model, deferral)
    with pytest.raises(ModelError, match=message):
        taught(model, deferral)


def test_a_list_of_what_is_kept_or_made_will_do() -> None:
    both = splitting(
        run=lambda self, x, weights, wanted: [x * weights[0], [x]],
        weight_gradients=lambda self, gradient, kept, wanted: [(gradient * kept[0]).sum(0)],
    )
    register_weight_split(Scale, both)
    deferral = Deferral()
    model = nn.Sequential(nn.Linear(6, 6), Scale())
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(taught(model, deferral), taught(reference, None))


def test_gradients_in_one_memory_come_apart() -> None:
    """They are added to in place: a sum of one would show in the other."""
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))]
    made = torch.ones(3)
    first, second = checked_gradients(
        ScaleSplit, (made, made), of=(), names=("weight", "bias"), wanted=(True, True), weights=weights
    )
    first.add_(1)
    assert second.tolist() == [1.0, 1.0, 1.0]
    apart = (torch.ones(3), torch.ones(3))
    kept = checked_gradients(ScaleSplit, apart, of=(), names=("weight", "bias"), wanted=(True, True), weights=weights)
    assert [id(tensor) for tensor in kept] == [id(tensor) for tensor in apart]


class Shift(nn.Module):
    """A weight as large as the input of these tests: its gradient is that of the output, and one tensor will do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def test_a_gradient_handed_on_as_it_came_is_not_added_into_for_others() -> None:
    """Used twice, its sum went into what the layer before still owed."""
    plain = splitting(
        run=lambda self, x, weights, wanted: (x + weights[0], ()),
        weight_gradients=lambda self, gradient, kept, wanted: (gradient,),
    )
    register_weight_split(Shift, plain)
    shift, deferral = Shift(), Deferral()
    model = nn.Sequential(nn.Linear(6, 6), shift, shift)
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(taught(model, deferral), taught(reference, None))


class Gate(nn.Module):
    """Where the output is summed, the gradient of its weight is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Gated(nn.Module):
    """The gate's gradients are made first, and the linear layer has kept the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x)
        return output + self.gate(x) + self.gate(x)


def test_a_tensor_that_was_kept_and_is_given_as_a_gradient_is_not_added_into_for_others() -> None:
    """The gate's second use would double the input of which the linear layer's gradient is made."""
    handing_on = splitting(weight_gradients=lambda self, gradient, kept, wanted: (kept[0],))
    register_weight_split(Gate, handing_on)
    model, deferral = nn.Sequential(nn.Linear(6, 6), Gated()), Deferral()
    reference = copy.deepcopy(model)
    apply_weight_splits(model, deferral)
    assert_same(
        taught(model, deferral, steps=1, loss_of=torch.sum), taught(reference, None, steps=1, loss_of=torch.sum)
    )
