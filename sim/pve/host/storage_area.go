package host

// This part of the package is the API for storages and their volumes, with uploads and downloads.

import "github.com/homestak/homestak-gitops/sim/pve/core"

// StorageArea is storages, their volumes, uploads and downloads.
func StorageArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/storage/{storage}/oci-registry-pull": core.On((*core.Call).Store, apiPullImage),
			"GET /nodes/{node}/storage/{storage}/import-metadata":    core.On((*core.Call).Store, apiImportMetadata),
			"GET /storage":                                            apiStorageConfigs,
			"POST /storage":                                           apiCreateStorage,
			"PUT /storage/{storage}":                                  apiUpdateStorage,
			"DELETE /storage/{storage}":                               apiDeleteStorage,
			"GET /storage/{storage}":                                  apiStorageConfig,
			"GET /nodes/{node}/query-url-metadata":                    apiURLMetadata,
			"GET /nodes/{node}/storage":                               apiNodeStorages,
			"GET /nodes/{node}/storage/{storage}/status":              apiStorageStatus,
			"GET /nodes/{node}/storage/{storage}/content":             core.On((*core.Call).Store, apiListContent),
			"POST /nodes/{node}/storage/{storage}/content":            core.On((*core.Call).Store, apiAllocate),
			"GET /nodes/{node}/storage/{storage}/content/{volume}":    core.On(CallVolume, apiGetVolume),
			"DELETE /nodes/{node}/storage/{storage}/content/{volume}": core.On(CallVolume, apiDeleteVolume),
			"POST /nodes/{node}/storage/{storage}/upload":             core.On((*core.Call).Store, apiUpload),
			"POST /nodes/{node}/storage/{storage}/download-url":       core.On((*core.Call).Store, apiDownload),
			"GET /nodes/{node}/aplinfo":                               apiAppliances,
			"POST /nodes/{node}/aplinfo":                              apiDownloadAppliance,
		},
	}
}
