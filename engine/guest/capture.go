package guest

// Capture keeps what a command writes to one of its outputs, up to OutputLimit bytes, and
// takes the rest without keeping it, so that the command can write on. For one goroutine.
type Capture struct {
	kept []byte
	cut  bool
}

// Write takes all of p.
func (c *Capture) Write(p []byte) (int, error) {
	n := min(len(p), OutputLimit-len(c.kept))
	c.kept = append(c.kept, p[:n]...)
	c.cut = c.cut || n < len(p)
	return len(p), nil
}

// Output is the output of what was kept.
func (c *Capture) Output(code, signal int, err *Capture) Output {
	return Output{Code: code, Signal: signal, Out: string(c.kept), Err: string(err.kept), Cut: c.cut || err.cut}
}
