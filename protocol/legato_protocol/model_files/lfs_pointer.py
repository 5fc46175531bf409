"""Git LFS pointers: the small text files that a clone has in place of large files until these are fetched."""

_START = b"version https://git-lfs.github.com/spec/"


def advice(content: bytes) -> str:
    """Returns what to do about content that is a pointer; "" for any other. The first 64 bytes suffice."""
    if not content.startswith(_START):
        return ""
    return "this is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder, or download the file"
