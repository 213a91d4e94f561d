"""The program starts without MPI; only ranks that a launcher started need it, and say so where it is missing."""

import os
import pathlib
import shutil
import subprocess
import unittest

import penstock_cli as cli

PROGRAM = pathlib.Path(cli.PROGRAM).resolve()
BUILD = PROGRAM.parent.parent
MODULE = next(BUILD.glob("lib*/**/penstock_mpi.so"), None)
MPIRUN = shutil.which("mpirun")
TWO_RANKS = ("train", "recipe.toml", "--json", *cli.settings({"plan.pipeline": 2, "plan.micro_batches": 2}))


@unittest.skipIf(MODULE is None or MPIRUN is None, "there is no MPI")
class WithoutMpi(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.program = self.folder / "elsewhere" / "bin" / "penstock"
        self.module = self.folder / "elsewhere" / MODULE.relative_to(BUILD)
        self.program.parent.mkdir(parents=True)
        self.module.parent.mkdir(parents=True)
        shutil.copy(PROGRAM, self.program)

    def run_copy(self, *arguments, launcher=(), **environment):
        allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        process = subprocess.Popen(
            [*launcher, self.program, *arguments],
            cwd=self.folder,
            env={**os.environ, **allow, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return cli.finish(process, [*launcher, *arguments])

    def run_two_processes(self, **environment):
        return self.run_copy(*TWO_RANKS, launcher=(MPIRUN, "--oversubscribe", "-n", "2"), **environment)

    def assert_works_alone(self):
        for arguments in (("train", "recipe.toml", "--json"), (*TWO_RANKS, "--ranks", "2")):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            result = self.run_copy(*arguments)
            self.assertEqual((result.code, result.errors()), (0, []), result)

    def assert_refused(self, *needles, **environment):
        result = self.run_two_processes(**environment)
        self.assertEqual((result.code, result.stdout), (2, ""), result)
        # Of each rank, unless the launcher ends the second when the first has ended.
        self.assertEqual(len(set(result.errors())), 1, result)
        for needle in ("a launcher started 2 ranks", "--ranks 2", *needles):
            self.assertIn(needle, result.errors()[0], result)
        self.assertFalse((self.folder / "out").exists(), result)

    def test_the_program_does_not_name_mpi(self):
        loaded = self.run_copy(LD_TRACE_LOADED_OBJECTS="1").stdout
        self.assertIn("libstdc++", loaded)
        self.assertNotIn("libmpi", loaded)

    def test_the_module_is_found_beside_the_program(self):
        shutil.copy(MODULE, self.module)
        result = self.run_two_processes()
        self.assertEqual((result.code, result.errors()), (0, []), result)

    def test_the_module_is_found_where_the_loader_looks(self):
        folder = self.folder / "libraries"
        folder.mkdir()
        shutil.copy(MODULE, folder)
        result = self.run_two_processes(LD_LIBRARY_PATH=str(folder))
        self.assertEqual((result.code, result.errors()), (0, []), result)

    def test_program_without_its_module(self):
        # The current folder is no place to look in, not even by an empty or relative name.
        shutil.copy(MODULE, self.folder)
        for path in ("", ":.", "/nowhere::../" + self.folder.name):
            with self.subTest(path=path):
                self.assert_refused(str(self.module), "missing", "cmake --install", LD_LIBRARY_PATH=path)
        self.assert_works_alone()

    def test_module_without_mpi(self):
        # As where libmpi is not installed: the module asks for a library that no machine has.
        content = MODULE.read_bytes()
        self.assertEqual(content.count(b"\0libmpi.so."), 1)
        self.module.write_bytes(content.replace(b"\0libmpi.so.", b"\0nonmpi.so."))
        self.assert_refused("nonmpi.so.", "No such file", "openmpi-bin", "libopenmpi3", "cluster")
        self.assert_works_alone()


if __name__ == "__main__":
    cli.main()
