"""Tests of names of which this torch lacks some."""

from __future__ import annotations

import unittest

import torch
import torch._dynamo.newer
import torch.newest as newest
from torch._dynamo import config
from torch._dynamo import testing as t
from torch._dynamo.testing import new, old


class T(unittest.TestCase):
    def test_old(self):
        self.assertEqual((old(), t.old()), (1, 1))

    def test_new(self):
        raise RuntimeError(new())

    def test_newer(self):
        torch._dynamo.newer.f()

    def test_newest(self):
        def inner():
            return newest

        inner()

    def test_config(self):
        config.gone

    def test_inside(self):
        from torch._dynamo.testing import gone

    def test_method(self):
        torch.Tensor.cos

    def test_hidden(self):
        helper()

    def test_own(self):
        new = config = unittest
        assert config.skip and new

    @torch.compiler.skipped(why=1)
    def test_decorated(self):
        raise RuntimeError

    @unittest.skipIf(torch.gone.is_here(), "gone")
    def test_condition(self):
        raise RuntimeError


def helper():
    return torch._dynamo.newer.f


class U(new):
    def test_base(self):
        raise RuntimeError


value = torch.gone.value


def test_value():
    value + 1
