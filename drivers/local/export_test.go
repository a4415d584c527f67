package local

import "time"

// NewWithGrace is this machine with another grace.
func NewWithGrace(grace time.Duration) Machine { return Machine{grace} }
