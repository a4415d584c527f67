package core

import (
	"hash/maphash"
	"sync"
)

// KeptPromises remembers answers that are what the API table promises. To check an answer
// costs more than to make it, and hosts in the same story give the same ones: a test that
// tells its story a thousand times lets all its hosts share one KeptPromises. The zero
// value is empty; nil remembers nothing.
type KeptPromises struct {
	seed maphash.Seed
	once sync.Once
	sums sync.Map // Of method and body. Hosts share it, on goroutines of their own.
}

func (k *KeptPromises) sum(name string, body []byte) uint64 {
	k.once.Do(func() { k.seed = maphash.MakeSeed() })
	var h maphash.Hash
	h.SetSeed(k.seed)
	_, _ = h.WriteString(name)
	_, _ = h.Write(body)
	return h.Sum64()
}

// First says whether an answer is none of those that are remembered.
func (k *KeptPromises) First(name string, body []byte) bool {
	if k == nil {
		return true
	}
	_, seen := k.sums.Load(k.sum(name, body))
	return !seen
}

// Add remembers an answer.
func (k *KeptPromises) Add(name string, body []byte) {
	if k != nil {
		k.sums.Store(k.sum(name, body), nil)
	}
}
