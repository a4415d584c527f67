package proxmoxtest

import (
	"hash/maphash"
	"net/http"
	"sync"
)

// acceptedRequests remembers requests that ValidateRequest found nothing wrong with. A test that
// tells its story a thousand times sends the same ones again and again, and checks each
// once. The zero value remembers nothing yet; many goroutines may use it.
type acceptedRequests struct {
	seed sync.Once
	hash maphash.Seed
	sums sync.Map
}

// Validate is ValidateRequest.
func (a *acceptedRequests) Validate(r *http.Request) error {
	body, err := peek(r)
	if err != nil {
		return err
	}
	a.seed.Do(func() { a.hash = maphash.MakeSeed() })
	var h maphash.Hash
	h.SetSeed(a.hash)
	for _, part := range []string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get("Content-Type")} {
		_, _ = h.WriteString(part + "\n")
	}
	_, _ = h.Write(body)
	sum := h.Sum64()
	if _, known := a.sums.Load(sum); known {
		return nil
	}
	if err = ValidateRequest(r); err == nil {
		a.sums.Store(sum, nil)
	}
	return err
}
