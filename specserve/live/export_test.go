package live

import "time"

// RetryAfter sets how long it takes until what failed is tried again; before Run.
func (s *Server) RetryAfter(d time.Duration) { s.retry = d }
