"""Offers the TPU chips of this host to a program on another one; see launch.sh."""

import sys

import tensorflow as tf

if __name__ == "__main__":
    # The program that connects says which host of which cluster this is.
    cluster = {"worker": [f"0.0.0.0:{sys.argv[1]}"]}
    tf.distribute.Server(cluster, job_name="worker", task_index=0).join()
