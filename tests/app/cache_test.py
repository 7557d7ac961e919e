"""Cache files from outside: what is asked from one answers as `precis run`; errors; kills while one is written.

Runs on tiny random models (PRECIS_TINY_DIR), so it is quick even with sanitizers.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import make_tiny_models as tiny  # noqa: E402

PRECIS = os.environ["PRECIS_BIN"]
TINY = os.environ["PRECIS_TINY_DIR"]
LLAMA = os.path.join(TINY, "llama.gguf")
GEMMA = os.path.join(TINY, "gemma3-scaled.gguf")
TEXT = "The quick brown fox jumps over the lazy dog. " * 5
# Two processes may measure differently, and their answers are compared.
ENVIRONMENT = dict(os.environ, PRECIS_ARG_MATMUL="sgemm", PRECIS_ARG_WEIGHTS="file", PRECIS_ARG_THREADS="1")


def precis(*arguments, stdin=None, preexec=None, environment=None):
    return subprocess.run([PRECIS, *arguments], input=stdin, capture_output=True, timeout=300,
                          env=dict(ENVIRONMENT, **(environment or {})), preexec_fn=preexec)


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = self.write("text.txt", TEXT.encode())
        self.cache = os.path.join(self.folder.name, "cache")

    def write(self, name, data):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def done(self, *arguments, **more):
        result = precis(*arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout.decode()

    def build(self, *arguments, model=LLAMA):
        return self.done("cache", "build", "-m", model, "-f", self.text, "-o", self.cache, *arguments)

    def refused(self, arguments, *words):
        """Exit code 1, no output, exactly one line on stderr, and it holds every word."""
        result = precis(*arguments)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 1, message)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(message.count("\n"), 1, message)
        for word in words:
            self.assertIn(word, message)

    def left_behind(self):
        return sorted(set(os.listdir(self.folder.name)) - {"text.txt"})


class SameAnswers(CacheTest):
    def answers(self, model, condensing, answering, question="Which animal?"):
        """Answers and figures of run, and of build and ask."""
        both = condensing + [word for word in answering if word not in condensing]
        run = json.loads(self.done("run", "-m", model, "-f", self.text, "-p", question, "--json", *both))
        self.build(*condensing, model=model)
        ask = json.loads(self.done("cache", "ask", "-m", model, self.cache, "-p", question, "--json", *answering))
        return run, ask

    def test_as_run(self):
        settings = [["--keep", "50%"], ["--keep", "60%", "--method", "snapkv"], ["--method", "full"], [],
                    ["--keep", "80", "--method", "reskv(validate=off)"], ["--raw", "--keep", "50%"],
                    ["--keep", "50%", "--method", "random", "-s", "7"],
                    ["--keep", "50%", "--method", "snapkv positions=compact"]]
        for model in [LLAMA, GEMMA]:
            for condensing in settings:
                run, ask = self.answers(model, condensing, ["-n", "12", "--ignore-eos"])
                for name in ["answer", "method", "keep", "n_condensed", "n_question", "n_answer", "next_position",
                             "kv_bytes", "kv_bytes_end", "type_k", "type_v", "model_sha256"]:
                    self.assertEqual(run[name], ask[name], (model, condensing, name))
                self.assertNotEqual(ask["answer"], "")

    def test_row_types(self):
        for types in [["-ctk", "q8_0", "-ctv", "q4"], ["-ctk", "q4"]]:
            run, ask = self.answers(GEMMA, ["--keep", "70%", *types], ["-n", "40", "--ignore-eos"])
            self.assertEqual((run["answer"], run["kv_bytes_end"]), (ask["answer"], ask["kv_bytes_end"]))

    def test_sampling(self):
        run, ask = self.answers(LLAMA, ["--keep", "50%", "--seed=3"], ["--temp", "1", "--seed=3", "-n", "12"])
        self.assertEqual(run["answer"], ask["answer"])

    def test_templates_that_look_at_the_clock_or_at_the_question(self):
        def model(name, source):
            path = os.path.join(self.folder.name, name)
            tiny.write_gguf(path, *tiny.build("llama", template=source))
            return path
        clock = model("clock.gguf", "{{ strftime_now('%H') }} {{ messages[0]['content'] }} ->")
        self.build("--keep", "50%", model=clock)
        ask = ["cache", "ask", "-m", clock, self.cache, "-p", "Who?", "-n", "4"]
        now = precis(*ask)
        later = precis(*ask, environment={"TZ": "ABC-7"})
        self.assertEqual((now.returncode, later.returncode), (0, 0), later.stderr)
        self.assertEqual(now.stdout, later.stdout)
        self.assertNotIn(b"the date", now.stderr)
        self.assertIn(b"the date", later.stderr)
        first = model("first.gguf", "{{ messages[0]['content'][-4:] }} {{ messages[0]['content'] }}")
        self.build("--keep", "50%", model=first)
        self.refused(["cache", "ask", "-m", first, self.cache, "-p", "Who?"], "--raw", "template")
        upper = model("upper.gguf", "{{ messages[0]['content'] | upper }}.")
        self.refused(["cache", "build", "-m", upper, "-f", self.text, "-o", self.cache], "--raw", "template")

    def test_many_questions_from_one_file(self):
        self.build("--keep", "50%")
        for question in ["Who?", "  Which animal\nis quick? ", "<|im_end|>", "\u00e9\u4e2d"]:
            ask = self.done("cache", "ask", "-m", LLAMA, self.cache, "-p", question, "-n", "8")
            run = self.done("run", "-m", LLAMA, "-f", self.text, "-p", question, "-n", "8", "--keep", "50%")
            self.assertEqual(ask, run, question)

    def test_document_from_standard_input(self):
        self.done("cache", "build", "-m", LLAMA, "-f", "-", "-o", self.cache, "--keep", "50%", stdin=TEXT.encode())
        first = self.done("cache", "ask", "-m", LLAMA, self.cache, "-p", "Who?", "-n", "8")
        self.build("--keep", "50%")
        self.assertEqual(self.done("cache", "ask", "-m", LLAMA, self.cache, "-p", "Who?", "-n", "8"), first)


class Commands(CacheTest):
    def test_info(self):
        built = json.loads(self.build("--keep", "50%", "-s", "9", "--json"))
        info = json.loads(self.done("cache", "info", "--json", self.cache))
        self.assertEqual(built, info)
        self.assertEqual(info["file_bytes"], os.path.getsize(self.cache))
        self.assertEqual(info["seed"], 9)
        self.assertEqual(info["document_bytes"], len(TEXT))
        self.assertEqual(info["report"]["entries"], info["entries_per_layer_head"])
        self.assertEqual(info["report"]["kept_bytes"], info["kv_bytes"])
        self.assertTrue(info["writer"].startswith("precis "))
        text = self.done("cache", "info", self.cache)
        for word in ["version 1", "llama", "score=selkv", "50%, seed 9", info["model_sha256"], "entries a head"]:
            self.assertIn(word, text)

    def test_verify(self):
        self.build("--keep", "50%")
        self.assertIn("is sound", self.done("cache", "verify", self.cache))
        self.assertIn("of this model", self.done("cache", "verify", self.cache, "-m", LLAMA))
        self.refused(["cache", "verify", self.cache, "-m", GEMMA], "sha256", "llama", "gemma3", "2 KV heads")
        self.refused(["cache", "ask", self.cache, "-m", GEMMA, "-p", "x"], "sha256", "llama", "gemma3")
        with open(self.cache, "rb") as file:
            data = bytearray(file.read())
        data[-100] ^= 1
        self.refused(["cache", "verify", self.write("bad", data)], "checksum", "rows", "precis cache build")
        self.refused(["cache", "ask", "-m", LLAMA, self.write("bad", data), "-p", "x"], "checksum", "rows")

    def test_bad_input(self):
        missing = os.path.join(self.folder.name, "missing")
        build = ["cache", "build", "-m", LLAMA, "-f", self.text]
        self.refused(["cache"], "build, ask, info or verify")
        self.refused(["cache", "bulid"], "bulid")
        self.refused(build, "--output")
        self.refused(build + ["-o", self.folder.name], "directory")
        self.refused(build + ["-o", os.path.join(missing, "cache")], "No such file")
        self.refused(build + ["-o", "/proc/cache"], "/proc/cache")
        self.refused(build + ["-o", "/dev/null"], "not a regular file")
        self.refused(build + ["-o", self.text], "overwrite", self.text)
        self.refused(["cache", "build", "-m", LLAMA, "-o", self.cache, "-f", missing], "cannot open")
        self.refused(["cache", "build", "-m", LLAMA, "-o", self.cache, "-f", self.write("e", b" \n")], "empty")
        self.refused(build + ["-o", self.cache, "--method", "h2o decode=step"], "decode=step")
        self.refused(build + ["-o", self.cache, "--method", "selkw"], "selkw", "selkv")
        self.refused(build + ["-o", self.cache, "--keep", "1"], "entries")
        self.refused(build + ["-o", self.cache, "-c", "20"], "-c", "20")
        self.assertEqual(self.left_behind(), ["e"])
        for command in [["info"], ["verify"], ["ask", "-m", LLAMA, "-p", "x"]]:
            self.refused(["cache", *command, missing], missing, "No such file")
            self.refused(["cache", *command, self.folder.name], "directory")
            self.refused(["cache", *command, self.text], "PRECISKV")
            self.refused(["cache", *command, "/dev/zero"], "not a regular file")
        self.build("--keep", "50%")
        self.refused(["cache", "ask", "-m", LLAMA, self.cache, "-p", " \n"], "question is empty")
        self.refused(["cache", "ask", "-m", LLAMA, self.cache], "--prompt")
        self.refused(["cache", "ask", "-m", LLAMA, self.cache, "-p", "a b " * 2000], "1024", "tokens")
        self.refused(["cache", "ask", "-m", missing, self.cache, "-p", "x"], "cannot open")

    def test_folder_without_permission(self):
        if os.geteuid() == 0:
            self.skipTest("root may write anywhere")
        os.chmod(self.folder.name, 0o500)
        self.addCleanup(os.chmod, self.folder.name, 0o700)
        self.refused(["cache", "build", "-m", LLAMA, "-f", self.text, "-o", self.cache], "Permission denied")

    def test_help(self):
        for command in [[], ["build"], ["ask"], ["info"], ["verify"]]:
            self.assertIn("help", self.done("cache", *command, "--help"))


class WhatIsLeft(CacheTest):
    def test_full_disk(self):
        """A limit on the size of files stands for it: with the signal ignored a write fails, else it kills."""
        def limit(handler):
            def before():
                signal.signal(signal.SIGXFSZ, handler)
                resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
            return before
        self.write("cache", b"old")
        arguments = ["cache", "build", "-m", LLAMA, "-f", self.text, "-o", self.cache, "--method", "full"]
        result = precis(*arguments, preexec=limit(signal.SIG_IGN))
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"File too large", result.stderr)
        self.assertEqual(precis(*arguments, preexec=limit(signal.SIG_DFL)).returncode, -signal.SIGXFSZ)
        self.assertEqual(self.left_behind(), ["cache"])
        with open(self.cache, "rb") as file:
            self.assertEqual(file.read(), b"old")

    def test_killed_while_writing(self):
        """Kills at random moments (many more, within the write: tests/store): what lies there then is a whole file, the old or the new one, or none."""
        arguments = ["cache", "build", "-m", LLAMA, "-f", self.text, "-o", self.cache, "--method", "full"]
        start = time.monotonic()
        self.build("--method", "full")
        seconds = time.monotonic() - start
        chance = random.Random(1)
        n_killed, n_there = 0, 0
        for i in range(30):
            if i % 2 == 0 and os.path.exists(self.cache):
                os.remove(self.cache)
            process = subprocess.Popen([PRECIS, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env=ENVIRONMENT)
            time.sleep(chance.uniform(0.3, 1.1) * seconds)
            process.kill()
            n_killed += process.wait() == -signal.SIGKILL
            if os.path.exists(self.cache):
                n_there += 1
                self.done("cache", "verify", self.cache)
        self.assertGreater(n_killed, 5)
        self.assertGreater(n_there, 5)
        # Only between getting a name and the right one can a kill leave a name behind.
        temporary = [name for name in self.left_behind() if name != "cache"]
        self.assertTrue(all(name.startswith(".precis-") for name in temporary), temporary)


if __name__ == "__main__":
    unittest.main()
