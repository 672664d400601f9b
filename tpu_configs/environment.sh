# The environment in which Keras' own tests of TPUs run (keras-rs, on a v6e chip).
# On a TPU VM, with the virtual environment active:  source tpu_configs/environment.sh
export TPU_NAME=local
export PJRT_DEVICE=TPU
export NEXT_PLUGGABLE_DEVICE_USE_C_API=true
export TF_XLA_FLAGS=--tf_mlir_enable_mlir_bridge=true
TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$(python -c \
  'import sysconfig; print(sysconfig.get_path("purelib"))')/libtpu/libtpu.so
export TF_PLUGGABLE_DEVICE_LIBRARY_PATH
