package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A node in mode pull reports once an hour, or only when it boots. So that an agent that starts again
// does not wait for all of them, the last reports are kept in a file.

// reportsFile is in the folder of the keys.
const reportsFile = "reports.json"

// keepEvery is the interval at which the file is written. Later reports are lost with a crash, and sent again.
const keepEvery = time.Minute

// restoreReports reads the file, for a server that starts. An unreadable file does not keep it from serving.
func (s *Server) restoreReports() {
	data, err := durable.ReadPrivate(filepath.Join(s.o.Access.Dir, reportsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var kept []wire.ReceivedReport
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil {
		s.o.Log.Warn("the reports from before the start are not known", "error", err)
		return
	}
	for _, r := range kept {
		// A guest is destroyed on this word, so it has to be heard, not remembered.
		r.Empty = false
		s.o.Reports.Put(r.Report, r.ReceivedAt)
	}
	s.kept = data
}

// keepReports writes the file, if it would be another one.
func (s *Server) keepReports() {
	data, err := json.Marshal(s.o.Reports.All())
	if err == nil && bytes.Equal(data, s.kept) {
		return
	}
	if err == nil {
		err = durable.Replace(filepath.Join(s.o.Access.Dir, reportsFile), data)
	}
	if err != nil {
		s.o.Log.Warn("the reports of nodes cannot be kept for the next start", "error", err)
		return
	}
	s.kept = data
}
