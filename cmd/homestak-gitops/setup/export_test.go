package setup

// SetAt sets what is called between any two changes.
func (s *Setup) SetAt(at func() error) { s.at = at }
