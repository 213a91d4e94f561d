"""The RAM of the whole process: planned for, shown, and held against ulimit before anything is allocated."""

import resource

import penstock_cli as cli

MIB = 2**20
MODEL = {"model.layers": 4, "model.width": 256, "model.heads": 4, "model.context": 128, "train.batch": 16, "train.steps": 6,
         "run.threads": 2}


class ProcessMemory(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe(MODEL)

    def test_the_plan_goes_into_it(self):
        free = self.train({"run.out": "free"})
        self.assertGreater(free["peak_rss_bytes"], free["peak_bytes"])
        wanted = free["peak_rss_bytes"] - free["peak_bytes"] // 3
        held = self.train({"run.process_memory": f'"{wanted}"'})
        self.assertGreater(held["limit_bytes"], 0)
        self.assertLess(held["peak_bytes"], free["peak_bytes"])
        self.assertLessEqual(held["peak_bytes"], held["limit_bytes"])
        self.assertLessEqual(held["peak_rss_bytes"], wanted)
        self.assertEqual(held["losses"], free["losses"])

    def test_what_cannot_be(self):
        result = self.run_program("train", "recipe.toml", "--set", 'run.process_memory="10MiB"')
        self.assert_fails(result, "run.process_memory", "is less than the program takes", code=2)
        result = self.run_program("train", "recipe.toml", "--set", 'run.process_memory="1GiB"', "--memory", "2GiB")
        self.assert_fails(result, "does not go into run.process_memory", code=2)

    def test_ulimit(self):
        values = {**MODEL, "model.layers": 200, "model.width": 512}  # 2.5 GB of weights, gradients and state
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        most = 2500 * MIB  # of addresses; the program takes a good part of them for itself

        result = self.run_program(
            "train", "recipe.toml", *words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
        self.assert_fails(result, "does not fit", "ulimit -v leaves", code=1)
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [])


if __name__ == "__main__":
    cli.main()
