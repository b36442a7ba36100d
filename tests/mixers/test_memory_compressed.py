"""Memory-compressed attention: what the contract does not say."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from allyouneed.mixers import Role, memory_compressed
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.memory_compressed import MemoryCompressed, MemoryCompressedConfig
from allyouneed.positions import POSITIONS
from helpers import assert_same_gradients


def build(stride: int, role: Role = "causal", position: str = "none") -> MemoryCompressed:
    config = MemoryCompressedConfig(heads=2, stride=stride)
    scheme = config.build_position(POSITIONS[position].model_validate({}), 12, role)
    mixer = config.build(12, role=role, position=scheme).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.4)
    return mixer


def densely(mixer: MemoryCompressed, x_BTD: Tensor) -> Tensor:
    """One masked T x S product, with torch's own strided convolution."""
    stride, T = mixer.config.stride, x_BTD.shape[1]
    q_BHTK, *keys_values = mixer.project.queries_keys_values(x_BTD)
    H, K = q_BHTK.shape[1], q_BHTK.shape[3]
    slots = []
    for which, y_BHTK in enumerate(keys_values):
        kernel = mixer.along_NPK[which * H : (which + 1) * H].view(H, stride, K, K).permute(0, 3, 2, 1).flatten(0, 1)
        bias = mixer.bias_N1K[which * H : (which + 1) * H].flatten()
        y = y_BHTK.transpose(2, 3).flatten(1, 2)
        if mixer.role == "bidirectional":
            y = F.pad(y, (0, -T % stride))
        found = F.conv1d(y, kernel, bias, stride=stride, groups=H) if y.shape[2] >= stride else y[:, :, :0]
        null = mixer.null_N[which * H * K : (which + 1) * H * K].view(1, -1, 1).expand(x_BTD.shape[0], -1, -1)
        slots.append(torch.cat([null, found], dim=2).unflatten(1, (H, K)).mT)
    ends = torch.arange(slots[0].shape[2]) * stride - 1
    visible = ends <= torch.arange(T)[:, None] if mixer.role == "causal" else None
    return mixer.project.merge(F.scaled_dot_product_attention(q_BHTK, *slots, attn_mask=visible))


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("stride", "length"), [(3, 1), (3, 2), (3, 17), (3, 64), (1, 20), (5, 43), (50, 43)])
def test_blocks_of_queries_equal_one_masked_product(
    stride: int, length: int, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths of several blocks, which no clause of the contract reaches; by rectangles and plainly."""
    monkeypatch.setattr(memory_compressed, "BLOCK", 8)
    mixer = build(stride, role)
    x_BTD = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
    wanted = densely(mixer, x_BTD)
    assert_same_gradients(mixer(x_BTD)[0], wanted, [x_BTD, mixer.null_N, mixer.project.output.weight])
    with sdpa_kernel(SDPBackend.MATH):
        assert_same_gradients(mixer(x_BTD)[0], wanted, [x_BTD, mixer.null_N, mixer.project.output.weight])


@pytest.mark.parametrize("position", ["none", "shaw", "t5", "alibi", "rotary"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_size_of_a_block_changes_nothing(position: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded rows and biases, whose blocks are computed twice in training, forward and gradient."""
    mixer = build(3, position=position)
    x_BTD = torch.randn(3, 41, 12, dtype=torch.float64, requires_grad=True)
    mask_BT = torch.rand(3, 41) < 0.7 if padded else None
    whole, _ = mixer(x_BTD, mask_BT=mask_BT)
    monkeypatch.setattr(memory_compressed, "BLOCK", 8)
    in_blocks, _ = mixer(x_BTD, mask_BT=mask_BT)
    counts = slice(None) if mask_BT is None else mask_BT
    assert_same_gradients(in_blocks[counts], whole[counts], [x_BTD, *mixer.parameters()])


def test_chunks_of_several_blocks_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_compressed, "BLOCK", 8)
    mixer = build(3)
    x_BTD = torch.randn(2, 70, 12, dtype=torch.float64)
    whole_BTD, _ = mixer(x_BTD)
    pieces, state = [], None
    for piece_BTD in x_BTD.split([1, 20, 9, 30, 2, 8], dim=1):
        y_BTD, state = mixer(piece_BTD, state=state)
        pieces.append(y_BTD)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole_BTD)


def test_stride_one_with_an_identity_is_softmax_attention_with_a_null_slot() -> None:
    mixer = build(1)
    with torch.no_grad():
        mixer.along_NPK.copy_(torch.eye(6, dtype=torch.float64))
        nn.init.zeros_(mixer.bias_N1K)
    x_BTD = torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, v = mixer.project.queries_keys_values(x_BTD)
    null_k, null_v = (null.view(1, 2, 1, 6).expand(2, -1, -1, -1) for null in mixer.null_N.chunk(2))
    mask_TS = torch.ones(9, 10, dtype=torch.bool).tril(1)
    y = F.scaled_dot_product_attention(q, torch.cat([null_k, k], 2), torch.cat([null_v, v], 2), attn_mask=mask_TS)
    torch.testing.assert_close(mixer(x_BTD)[0], mixer.project.merge(y))


def test_the_first_queries_read_the_null_slot() -> None:
    mixer = build(3)
    y_BTD, _ = mixer(torch.randn(1, 5, 12, dtype=torch.float64))
    null_1D = mixer.project.output(mixer.null_N[12:])[None]
    torch.testing.assert_close(y_BTD[0, :2], null_1D.expand(2, -1))
    assert not torch.isclose(y_BTD[0, 2], null_1D).any()


def test_the_bidirectional_end_is_not_lost() -> None:
    """The last position, alone in its slot, is read by the first."""
    mixer = build(3, "bidirectional")
    x_BTD = torch.randn(1, 7, 12, dtype=torch.float64, requires_grad=True)
    (gradient_BTD,) = torch.autograd.grad(mixer(x_BTD)[0][0, 0].sum(), x_BTD)
    assert (gradient_BTD[0, 6] != 0).any()


def test_maps_show_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_compressed, "BLOCK", 4)
    mixer, maps = build(3), []
    x_BTD = torch.randn(1, 10, 12, dtype=torch.float64)
    with send_maps_to(lambda _, alpha_BHTS: maps.append(alpha_BHTS)):
        shown, _ = mixer(x_BTD)
    torch.testing.assert_close(shown, mixer(x_BTD)[0])
    (alpha_BHTS,) = maps
    assert alpha_BHTS.shape == (1, 2, 10, 4)
    torch.testing.assert_close(alpha_BHTS.sum(dim=-1), torch.ones(1, 2, 10, dtype=torch.float64))
    seen_T = (alpha_BHTS[0, 0] > 0).sum(dim=-1)
    assert seen_T.tolist() == [1, 1, 2, 2, 2, 3, 3, 3, 4, 4]


@pytest.mark.parametrize("position", ["none", "alibi"])
def test_memory_grows_with_the_length_only(position: str) -> None:
    """What the backward pass keeps: no tensor of T x S numbers, with or without something added to the scores."""
    mixer = build(3, position=position).float()

    def kept(length: int) -> int:
        sizes: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            mixer(torch.randn(1, length, 12, requires_grad=True))
        return sum(sizes.values())

    assert kept(8192) < 2.3 * kept(4096)
