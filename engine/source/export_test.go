package source

// WithPacks makes the copy be compacted at so many packs.
func (o Options) WithPacks(n int) Options {
	o.packs = n
	return o
}
