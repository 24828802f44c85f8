"""The page of results."""


def draw(section, output):
    pass
