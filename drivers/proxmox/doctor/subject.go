package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// subject is the host that is checked, with the site's requirements. All areas share it, and the
// findings; results for later areas are in the type of an area.
type subject struct {
	*findings
	host   *model.Host
	site   *model.Site
	want   *model.Want
	driver *proxmox.Driver // nil if the token cannot work at all
}

func (s *subject) client() *api.Client { return s.driver.Client() }

// list reads a list of the API.
func (s *subject) list(ctx context.Context, path string) ([]map[string]json.RawMessage, error) {
	var list []map[string]json.RawMessage
	err := api.ReadList(ctx, s.client(), path, &list)
	return list, err
}

// at is the file and line of the host's block, with a space before it, or nothing.
func (s *subject) at() string {
	if s.host.At.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", s.host.At.File, s.host.At.Start.Line)
}

// askedBy is the attribute of a resource that needs something, for the end of a sentence.
func askedBy(r *model.Resource, attr string) string {
	at := r.RangeOf(attr)
	if at.IsZero() {
		return r.Addr.String()
	}
	return fmt.Sprintf("%s (%s:%d)", r.Addr, at.File, at.Start.Line)
}

// askers are the resources that ask for something, each once and with the line that
// says most about it.
type askers map[model.Address]string

func (a askers) add(r *model.Resource, attr string) {
	if a[r.Addr] == "" || attr != "" {
		a[r.Addr] = askedBy(r, attr)
	}
}

// String joins them, shortened where there are many.
func (a askers) String() string {
	var list []string
	for _, addr := range slices.SortedFunc(maps.Keys(a), model.Address.Compare) {
		list = append(list, a[addr])
	}
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}
