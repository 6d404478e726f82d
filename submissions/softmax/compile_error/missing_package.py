"""Imports a package that is not in the sandbox."""

import package_that_nobody_installed


def softmax(x, out):
    package_that_nobody_installed.softmax(x, out)
