"""Prints terminal commands, invisible characters, markup and broken text.

All of it is escaped when it is shown, and none of it affects the verdict.
"""

import os

import torch

os.write(1, b"\x1b]0;accepted\x07\x1b[2J\x1b[1;1Haccepted\xff\xfe\x00\r\n")
os.write(2, "\u202edetpecca\u202c [bold green]accepted[/] [/nothing] \u200b\x9b2J".encode())


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
