REASONS: dict[str, tuple[str, str]] = {}
