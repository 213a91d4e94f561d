# Thin, for people: each target is one or two commands that you can also type.
.PHONY: demo test build cuda bench setup format asan sanitize fuzz clean

demo: build          ## train a small GPT-2 on the project's own text, then write a sample
	build/penstock train recipes/demo.toml

test: build          ## all tests that need no GPU
	cmake --build --preset release
	ctest --preset release

build: setup         ## the release program, at build/penstock
	@[ -f build/release/build.ninja ] || cmake --preset release
	cmake --build --preset release --target penstock
	@ln -sfn release/app/penstock build/penstock

cuda:                ## the program with the GPU code and its tests, in build/cuda (needs the CUDA toolkit; see docs/gpu.md)
	@tools/setup --cuda-build
	@[ -f build/cuda/build.ninja ] || cmake --preset cuda
	cmake --build --preset cuda --target penstock gpu_kernel_tests gpu_model_tests penstock_start

setup:
	@tools/setup

bench: build         ## the training step, and recomputation, next to PyTorch (needs a Python with torch: see bench/README.md)
	bench/step
	bench/recompute

asan: setup          ## the LibTorch-free tests under the address and undefined-behaviour sanitizers
	cmake --preset asan && cmake --build --preset asan && ctest --preset asan

sanitize:            ## all tests under the address, undefined-behaviour and thread sanitizers; an hour, logs in build/sanitize
	@tools/setup --clang
	tools/sanitize

fuzz:                ## five minutes of fuzzing for each reader of untrusted files
	@tools/setup --clang
	tools/fuzz 300

format:              ## format every source
	tools/format

clean:
	rm -rf build
