package wire

import (
	"encoding/json"
	"fmt"
)

// Receipts is the request of a child that sends its receipts, and those of hosts below it, to its parent. A chain without documents
// asks which the parent has.
type Receipts struct {
	Version int            `json:"version"` // 1
	Chains  []ReceiptChain `json:"chains"`
}

// ReceiptChain is a part of one chain.
type ReceiptChain struct {
	Path      []string          `json:"path"` // names from the child down to the host; empty for the child itself
	Keys      []string          `json:"keys"` // public
	Documents []json.RawMessage `json:"documents"`
}

// ReceiptHeads is the answer: the newest receipts that the parent has.
type ReceiptHeads struct {
	Heads []ReceiptHead `json:"heads"` // in the order of the request
}

// ReceiptHead is the newest receipt of a chain; the zero value is none.
type ReceiptHead struct {
	ID   string `json:"id"`
	Hash string `json:"sha256"`
}

// Limits of chains in one request.
const (
	maxChains = 1_000
	maxDepth  = 8
)

// Check validates it, and what is a name of a folder in it.
func (r Receipts) Check() error {
	if r.Version != 1 || len(r.Chains) > maxChains {
		return fmt.Errorf("it has version %d with %d chains, this server reads 1 with at most %d", r.Version, len(r.Chains), maxChains)
	}
	for _, c := range r.Chains {
		for _, name := range c.Path {
			if !IsIdentity(name) || len(c.Path) > maxDepth {
				return fmt.Errorf("%.80q is not the way to a host", c.Path)
			}
		}
	}
	return nil
}
