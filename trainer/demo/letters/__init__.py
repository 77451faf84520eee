"""The second embedded model: it writes words of three capital letters, for the `ocr` reward."""
