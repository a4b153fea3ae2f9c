"""``python -m config.server``: granian's command line with our supervisor."""

from __future__ import annotations

from config.server.supervisor import main

if __name__ == "__main__":
    main()
