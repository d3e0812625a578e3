"""Train a flax network and keep its best three steps with orbax's CheckpointManager."""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from flax.training.train_state import TrainState


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.relu(nn.Dense(32)(x))
        return nn.Dense(1)(hidden)


def make_state(steps=1000):
    network = Network()
    parameters = network.init(jax.random.key(0), jnp.zeros((1, 8)))
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-2, steps))
    return TrainState.create(apply_fn=network.apply, params=parameters, tx=optimizer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    x = jax.random.normal(jax.random.key(1), (320, 8))
    y = jnp.sin(x[:, :1] * x[:, 1:2])
    state = make_state()
    manager = ocp.CheckpointManager(
        os.path.abspath("ck"),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=3, best_fn=lambda metrics: metrics["val_loss"], best_mode="min"
        ),
    )

    def loss_of(parameters, inputs, targets):
        return jnp.mean((state.apply_fn(parameters, inputs) - targets) ** 2)

    @jax.jit
    def train_step(state, inputs, targets):
        loss, gradients = jax.value_and_grad(loss_of)(state.params, inputs, targets)
        return state.apply_gradients(grads=gradients), loss

    for step in range(1, given.steps + 1):
        begin = step * 32 % 256
        state, loss = train_step(state, x[begin : begin + 32], y[begin : begin + 32])
        time.sleep(given.pause)
        if step % 10 == 0:
            value = float(loss_of(state.params, x[256:], y[256:]))
            print(f"step={step} train_loss={float(loss):.5f} val_loss={value:.5f}", flush=True)
            manager.save(step, args=ocp.args.StandardSave(state), metrics={"val_loss": value})
    manager.wait_until_finished()
    manager.close()


if __name__ == "__main__":
    main()
