package specserve

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// takeReceipts keeps the receipts of a child.
func takeReceipts(x *request) error {
	n, err := x.own()
	if err != nil {
		return err
	}
	if wait, ok := x.reporting.Take(rateKey{About: "receipts of " + x.identity}, x.now); !ok {
		return x.later(wait, "the node sends receipts too often")
	}
	if x.o.Receipts == nil || !n.Child {
		return &wire.Error{Code: wire.CodeNotFound, Message: "receipts are taken from the agents of hosts, by an agent"}
	}
	body, err := io.ReadAll(x.Body)
	if err != nil {
		return unreadable(err)
	}
	var r wire.Receipts
	if err = json.Unmarshal(body, &r); err != nil {
		err = errors.New("it is not the JSON document of receipts")
	} else {
		err = r.Check()
	}
	if err != nil {
		return &wire.Error{Code: wire.CodeSchema, Message: err.Error()}
	}
	heads, err := x.o.Receipts(x.identity, r)
	if err != nil {
		return &wire.Error{Code: wire.CodeSchema, Message: err.Error()}
	}
	return x.json(http.StatusOK, heads)
}
