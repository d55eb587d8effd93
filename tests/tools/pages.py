"""Shared by the tests of tools: a model that needs the host, and checks of HTML reports."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import onnx
from onnx import helper, numpy_helper

from nets import small_cnn

VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Text, tags and attribute values of a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(text: str) -> Page:
    """The page; it loads nothing."""
    page = Page(text)
    assert page.references == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import", text)
    return page


def host_cnn() -> onnx.ModelProto:
    """`small_cnn` with TopK in place of Softmax: two outputs, so it stays in onnxruntime."""
    net = small_cnn()
    del net.graph.node[-1]
    net.graph.node.append(helper.make_node("TopK", ["r", "k"], ["y", "which"], "top"))
    net.graph.initializer.append(numpy_helper.from_array(np.array([10]), "k"))
    return net
