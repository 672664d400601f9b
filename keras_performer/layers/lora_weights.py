"""LoRA in files: the weights that it trains beside those that it leaves."""

import contextlib

import numpy as np

# Entries of a file, beside the two weights of LoRA.
_FROZEN, _SCALE = "frozen_", "lora_scale"


class KeepsLora:
    """What is added to a dense or embedding layer of Keras with `enable_lora`.

    Keras writes the product of LoRA's weights into the kernel when it saves, and
    rounds the sum again if it is quantized; what it loads begins with both of them 0,
    where neither has a gradient. Here files have them as they are, so that a model that
    is loaded gives the same numbers and trains on. A layer without LoRA that loads such
    a file adds the product to its kernel.
    """

    # the kernel, and the two whose product is added to it
    lora_names = "kernel", "lora_kernel_a", "lora_kernel_b"

    def quantize(self, mode=None, type_check=True, **options):
        wanted = mode or getattr(options.get("config"), "mode", None)
        if wanted in ("gptq", "awq"):
            raise ValueError(
                'mode must be "int8", "int4" or "float8": layers inside others would '
                f"not load after {wanted!r}. Received: mode={wanted!r}"
            )
        # Keras' own check refuses every subclass
        return super().quantize(mode, type_check=False, **options)

    def save_own_variables(self, store):
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        entries: dict = {}
        with _without_lora(self):
            super().save_own_variables(entries)
        # by names that Keras' layers do not take for weights without LoRA
        for key, value in entries.items():
            store[_FROZEN + key] = value
        for name in self.lora_names[1:]:
            store[name] = getattr(self, name)
        store[_SCALE] = np.float64(_scale(self))

    def load_own_variables(self, store):
        if _SCALE not in store.keys():
            self._load_without_lora(store)
            return
        frozen = {
            key.removeprefix(_FROZEN): store[key]
            for key in store.keys()
            if key.startswith(_FROZEN)
        }
        factors = [np.array(store[name]) for name in self.lora_names[1:]]
        rank, scale = len(factors[1]), float(np.array(store[_SCALE]))
        if not self.lora_enabled:
            kernel = getattr(self, self.lora_names[0])
            if self.dtype_policy.quantization_mode is not None:
                raise ValueError(
                    _enable(self, rank, scale, "the kernel is quantized, without LoRA")
                )
            super().load_own_variables(frozen)
            kernel.assign_add(scale * factors[0] @ factors[1])
            return
        if rank != self.lora_rank or not np.isclose(scale, _scale(self)):
            received = f"rank={self.lora_rank}, lora_alpha={self.lora_alpha}"
            raise ValueError(_enable(self, rank, scale, received))
        super().load_own_variables(frozen)
        for name, factor in zip(self.lora_names[1:], factors):
            getattr(self, name).assign(factor)

    def _load_without_lora(self, store):
        if not self.lora_enabled:
            super().load_own_variables(store)
            return
        factor = getattr(self, self.lora_names[1])
        before = np.array(factor)
        super().load_own_variables(store)  # which makes both of them 0
        factor.assign(before)


def _scale(layer):
    return layer.lora_alpha / layer.lora_rank


def _enable(layer, rank, scale, received):
    return (
        f"The file has LoRA weights for {layer.path}: call "
        f"enable_lora({rank}, lora_alpha={scale * rank:g}) of a new layer before its "
        f"weights are loaded. Received: a layer where {received}"
    )


@contextlib.contextmanager
def _without_lora(layer):
    layer.lora_enabled = False
    try:
        yield
    finally:
        layer.lora_enabled = True
