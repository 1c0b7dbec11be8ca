"""What epvi says of its work while it works: log records under the name `epvi`, silent unless a user asks for them.

Only the process of the caller logs; what workers do is told there, when it comes back.
"""

import logging

logger = logging.getLogger("epvi")
# Without it Python prints warnings of libraries that nobody listens to.
logger.addHandler(logging.NullHandler())
