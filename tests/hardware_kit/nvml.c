/* A stand-in for libnvidia-ml.so.1, so that the real pynvml path runs without a GPU.
 *
 * It answers from a text file of "key=value" lines: the file that NVML_STAND_IN names, or /etc/nvml-stand-in.conf, as it is
 * at that moment.
 * "gpu3.name" goes before "gpu.name". A value may also be an error: ns (not supported), np (no permission), lost (GPU
 * is lost), err:N (NVML's code N). "hang=FUNCTION" makes that call never return ("hang_gpu=3": for that GPU only).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int Return;
typedef void *Device;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, TOO_SMALL = 7, NOT_FOUND = 13, LOST = 15 };

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latency;
    unsigned valueType;
    Return result;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long ll; } value;
} Field;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    Return status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} Fabric;

typedef struct { unsigned version; int margin; } Margin;

typedef struct { unsigned version, sensor; int temperature; } Temperature;

typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } Sram;

static char *settings;

/* Read the file, and read it again when it has changed: a GPU gets hot while it is watched. */
static void load(void) {
    static struct stat last;
    const char *path = getenv("NVML_STAND_IN");
    struct stat now;
    FILE *file;
    size_t length;
    if (!path) path = "/etc/nvml-stand-in.conf";
    if (stat(path, &now)) memset(&now, 0, sizeof now);
    if (settings && now.st_ino == last.st_ino && now.st_mtim.tv_sec == last.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == last.st_mtim.tv_nsec)
        return;
    last = now;
    if (!settings) settings = calloc(1, 1 << 20);
    settings[0] = 0;
    if (!(file = fopen(path, "r"))) return;
    length = fread(settings, 1, (1 << 20) - 1, file);
    settings[length] = 0;
    fclose(file);
}

/* The value of a key, copied into a buffer; NULL if it is not there. */
static const char *find(const char *key, char *into, size_t room) {
    size_t length = strlen(key);
    const char *line = settings;
    load();
    for (line = settings; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (!strncmp(line, key, length) && line[length] == '=') {
            const char *start = line + length + 1, *end = strchr(start, '\n');
            size_t size = end ? (size_t)(end - start) : strlen(start);
            if (size >= room) size = room - 1;
            memcpy(into, start, size);
            into[size] = 0;
            return into;
        }
    }
    return NULL;
}

static int index_of(Device device) { return (int)(long)device - 1; }

static const char *get(Device device, const char *key, char *into, size_t room) {
    char name[128];
    snprintf(name, sizeof name, "gpu%d.%s", index_of(device), key);
    if (find(name, into, room)) return into;
    snprintf(name, sizeof name, "gpu.%s", key);
    return find(name, into, room);
}

/* 0, or the error that a value stands for. */
static Return failure(const char *text) {
    if (!text || !strcmp(text, "ns")) return NOT_SUPPORTED;
    if (!strcmp(text, "np")) return NO_PERMISSION;
    if (!strcmp(text, "lost")) return LOST;
    return strncmp(text, "err:", 4) ? OK : atoi(text + 4);
}

static void hang(const char *function, Device device) {
    char wanted[128], gpu[16];
    if (find("hang", wanted, sizeof wanted) && !strcmp(wanted, function))
        if (!device || !find("hang_gpu", gpu, sizeof gpu) || atoi(gpu) == index_of(device))
            for (;;) pause();
}

static Return number(Device device, const char *key, unsigned long long *into) {
    char text[256];
    const char *value = get(device, key, text, sizeof text);
    Return bad = failure(value);
    if (!bad) *into = strtoull(value, NULL, 0);
    return bad;
}

static Return words(Device device, const char *key, char *into, unsigned room) {
    char text[256];
    const char *value = get(device, key, text, sizeof text);
    Return bad = failure(value);
    if (!bad) snprintf(into, room, "%s", value);
    return bad;
}

#define TEXT(function, key) \
    Return function(Device d, char *into, unsigned room) { hang(#function, d); return words(d, key, into, room); }
#define UINT(function, key) \
    Return function(Device d, unsigned *into) { \
        unsigned long long value; Return bad; \
        hang(#function, d); bad = number(d, key, &value); if (!bad) *into = (unsigned)value; return bad; }
#define KIND(function, prefix) \
    Return function(Device d, unsigned kind, unsigned *into) { \
        unsigned long long value; Return bad; char key[64]; \
        snprintf(key, sizeof key, prefix "%u", kind); \
        hang(#function, d); bad = number(d, key, &value); if (!bad) *into = (unsigned)value; return bad; }
#define PAIR(function, first, second) \
    Return function(Device d, unsigned *a, unsigned *b) { \
        unsigned long long x, y; Return bad; \
        hang(#function, d); bad = number(d, first, &x); if (bad) return bad; \
        bad = number(d, second, &y); if (bad) y = x; *a = (unsigned)x; *b = (unsigned)y; return OK; }

const char *nvmlErrorString(Return code) { return code == OK ? "Success" : code == LOST ? "GPU is lost" : "an error of the stand-in"; }

static Return global(const char *function, const char *key, char *into, unsigned room, const char *otherwise) {
    char text[256];
    const char *value = find(key, text, sizeof text);
    Return bad;
    hang(function, NULL);
    bad = value ? failure(value) : OK;
    if (!bad) snprintf(into, room, "%s", value ? value : otherwise);
    return bad;
}

Return nvmlInitWithFlags(unsigned flags) {
    char text[64];
    (void)flags;
    load();
    hang("nvmlInitWithFlags", NULL);
    return find("init", text, sizeof text) ? failure(text) : OK;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return OK; }
Return nvmlSystemGetDriverVersion(char *into, unsigned room) {
    return global("nvmlSystemGetDriverVersion", "driver", into, room, "550.90.07");
}
Return nvmlSystemGetNVMLVersion(char *into, unsigned room) {
    return global("nvmlSystemGetNVMLVersion", "library", into, room, "12.550.90.07");
}
Return nvmlSystemGetCudaDriverVersion_v2(int *into) {
    char text[64];
    *into = find("cuda", text, sizeof text) ? atoi(text) : 12040;
    return OK;
}
Return nvmlDeviceGetCount_v2(unsigned *into) {
    char text[64];
    hang("nvmlDeviceGetCount_v2", NULL);
    *into = 0;
    if (!find("count", text, sizeof text)) return OK;
    if (failure(text)) return failure(text);
    *into = (unsigned)atoi(text);
    return OK;
}
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *into) {
    char text[64];
    Device device = (Device)(long)(index + 1);
    Return bad;
    hang("nvmlDeviceGetHandleByIndex_v2", device);
    bad = get(device, "handle", text, sizeof text) ? failure(text) : OK;
    if (!bad) *into = device;
    return bad;
}
Return nvmlDeviceGetPciInfo_v3(Device d, Pci *into) {
    char text[24];
    hang("nvmlDeviceGetPciInfo_v3", d);
    if (failure(get(d, "bus_id", text, sizeof text))) return NOT_SUPPORTED;
    memset(into, 0, sizeof *into);
    snprintf(into->busId, sizeof into->busId, "0000%s", text);
    into->pciDeviceId = 0x233010de;
    return OK;
}

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom")
Return nvmlDeviceGetGspFirmwareVersion(Device d, char *into) { return words(d, "gsp_firmware", into, 64); }
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_gpu_max")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
KIND(nvmlDeviceGetTemperature, "temperature_")
KIND(nvmlDeviceGetTemperatureThreshold, "temperature_threshold_")
UINT(nvmlDeviceGetPowerUsage, "power_mw")
UINT(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
KIND(nvmlDeviceGetClockInfo, "clock_")
KIND(nvmlDeviceGetMaxClockInfo, "clock_max_")
KIND(nvmlDeviceGetApplicationsClock, "clock_application_")
UINT(nvmlDeviceGetPerformanceState, "performance_state")
UINT(nvmlDeviceGetPersistenceMode, "persistence_mode")
UINT(nvmlDeviceGetComputeMode, "compute_mode")
UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending")
PAIR(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode_pending")
PAIR(nvmlDeviceGetMigMode, "mig_mode", "mig_mode_pending")
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device d, unsigned long long *into) {
    hang("nvmlDeviceGetCurrentClocksThrottleReasons", d);
    return number(d, "throttle_reasons", into);
}
Return nvmlDeviceGetTotalEccErrors(Device d, unsigned kind, unsigned counter, unsigned long long *into) {
    char key[64];
    hang("nvmlDeviceGetTotalEccErrors", d);
    snprintf(key, sizeof key, "ecc_%s_%s", kind ? "uncorrected" : "corrected", counter ? "aggregate" : "volatile");
    return number(d, key, into);
}
Return nvmlDeviceGetMemoryInfo(Device d, Memory *into) {
    Return bad;
    hang("nvmlDeviceGetMemoryInfo", d);
    bad = number(d, "memory_total", &into->total);
    if (bad) return bad;
    if (number(d, "memory_used", &into->used)) into->used = 0;
    into->free = into->total - into->used;
    return OK;
}
/* Newer drivers tell apart what they keep for themselves (memory_reserved), which the first call counts as used. */
Return nvmlDeviceGetMemoryInfo_v2(Device d, Memory2 *into) {
    Return bad;
    if (number(d, "memory_reserved", &into->reserved)) return NOT_FOUND;
    bad = number(d, "memory_total", &into->total);
    if (bad) return bad;
    if (number(d, "memory_used", &into->used)) into->used = 0;
    into->used -= into->reserved;
    into->free = into->total - into->used - into->reserved;
    return OK;
}
Return nvmlDeviceGetBAR1MemoryInfo(Device d, Memory *into) { into->used = 0; return number(d, "bar1_total", &into->total); }
Return nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) {
    char text[32];
    if (!get(d, "capability", text, sizeof text)) return NOT_SUPPORTED;
    return sscanf(text, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}
Return nvmlDeviceGetUtilizationRates(Device d, Utilization *into) {
    unsigned long long value = 0;
    Return bad = number(d, "utilization", &value);
    into->gpu = (unsigned)value;
    into->memory = 0;
    return bad;
}
Return nvmlDeviceGetRemappedRows(Device d, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    unsigned long long a, b, c, e;
    Return bad = number(d, "remapped_correctable", &a);
    if (bad) return bad;
    if (number(d, "remapped_uncorrectable", &b)) b = 0;
    if (number(d, "remap_pending", &c)) c = 0;
    if (number(d, "remap_failure", &e)) e = 0;
    *correctable = (unsigned)a, *uncorrectable = (unsigned)b, *pending = (unsigned)c, *failed = (unsigned)e;
    return OK;
}
Return nvmlDeviceGetGpuFabricInfoV(Device d, Fabric *into) {
    unsigned long long value;
    Return bad;
    hang("nvmlDeviceGetGpuFabricInfoV", d);
    bad = number(d, "fabric_state", &value);
    if (bad) return bad;
    into->state = (unsigned char)value;
    into->status = number(d, "fabric_status", &value) ? 0 : (Return)value;
    into->clique = 0;
    memset(into->cluster, number(d, "fabric_cluster", &value) ? 0 : (int)value, sizeof into->cluster);
    into->health = number(d, "fabric_health", &value) ? 2 : (unsigned)value;
    return OK;
}
Return nvmlDeviceGetFieldValues(Device d, int count, Field *values) {
    int i;
    for (i = 0; i < count; i++) {
        unsigned long long value;
        char key[64];
        snprintf(key, sizeof key, "field_%u_%u", values[i].fieldId, values[i].scopeId); /* of a link */
        if ((values[i].result = number(d, key, &value))) {
            snprintf(key, sizeof key, "field_%u", values[i].fieldId);
            values[i].result = number(d, key, &value);
        }
        values[i].value.ull = values[i].result ? 0 : value;
    }
    return OK;
}
/* How many NVLinks; minus NVML's error code where the value is an error. */
static int links(Device d) {
    unsigned long long value;
    Return bad = number(d, "nvlinks", &value);
    return bad ? -bad : (int)value;
}
Return nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *into) {
    char text[256], one[16];
    int count = links(d);
    hang("nvmlDeviceGetNvLinkState", d);
    if (count < 0) return -count;
    if ((int)link >= count) return INVALID;
    snprintf(one, sizeof one, ",%u,", link);
    if (get(d, "nvlinks_absent", text, sizeof text) && strstr(text, one)) return NOT_SUPPORTED; /* a gap */
    if (get(d, "nvlinks_failing", text, sizeof text) && strstr(text, one)) return 999;
    *into = !(get(d, "nvlinks_down", text, sizeof text) && strstr(text, one)); /* ",3,7," */
    return OK;
}
Return nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *into) { (void)d, (void)link; *into = 4; return OK; }
Return nvmlDeviceGetNvLinkRemoteDeviceType(Device d, unsigned link, unsigned *into) { (void)d, (void)link; *into = 2; return OK; }
Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, unsigned link, Pci *into) {
    (void)d, (void)link;
    memset(into, 0, sizeof *into);
    snprintf(into->busId, sizeof into->busId, "00000000:C1:00.0");
    return OK;
}
Return nvmlDeviceGetNvLinkErrorCounter(Device d, unsigned link, unsigned counter, unsigned long long *into) {
    char key[64];
    Return bad = get(d, "nvlink_errors", key, sizeof key) ? failure(key) : OK; /* ns: NVLink 5 */
    if (bad) return bad;
    snprintf(key, sizeof key, "nvlink%u_error_%u", link, counter);
    if (number(d, key, into)) *into = 0;
    return OK;
}
/* processes=4242:1073741824,4243:5 */
static Return processes(Device d, const char *key, unsigned *count, Process *into) {
    char text[256];
    unsigned room = *count, found = 0;
    char *entry;
    if (!get(d, key, text, sizeof text)) { *count = 0; return OK; }
    if (failure(text)) return failure(text);
    for (entry = strtok(text, ","); entry; entry = strtok(NULL, ",")) {
        if (into && found < room) {
            memset(&into[found], 0, sizeof into[found]);
            into[found].pid = (unsigned)atoi(entry);
            into[found].used = strchr(entry, ':') ? strtoull(strchr(entry, ':') + 1, NULL, 0) : 0;
        }
        found++;
    }
    *count = found;
    return into && found <= room ? OK : TOO_SMALL;
}
Return nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, Process *into) {
    hang("nvmlDeviceGetComputeRunningProcesses_v3", d);
    return processes(d, "processes", count, into);
}
Return nvmlDeviceGetGraphicsRunningProcesses_v3(Device d, unsigned *count, Process *into) {
    return processes(d, "graphics_processes", count, into);
}
Return nvmlDeviceGetComputeRunningProcesses_v2(Device d, unsigned *count, Process *into) {
    return processes(d, "processes_v2", count, into);
}
/* Only where "temperature_v" is told: most drivers have it beside the older call, and both answer the same. */
Return nvmlDeviceGetTemperatureV(Device d, Temperature *into) {
    unsigned long long value;
    Return bad = number(d, "temperature_v", &value);
    hang("nvmlDeviceGetTemperatureV", d);
    if (!bad) into->temperature = (int)value;
    return bad;
}

Return nvmlDeviceGetMarginTemperature(Device d, Margin *into) {
    unsigned long long value;
    Return bad = number(d, "temperature_margin", &value);
    if (!bad) into->margin = (int)value;
    return bad;
}
Return nvmlDeviceGetSramEccErrorStatus(Device d, Sram *into) {
    unsigned long long value;
    Return bad = number(d, "sram_threshold", &value);
    if (!bad) into->exceeded = (unsigned)value;
    return bad;
}
Return nvmlDeviceGetNumaNodeId(Device d, int *into) {
    unsigned long long value;
    Return bad = number(d, "memory_numa_node", &value);
    if (!bad) *into = (int)value;
    return bad;
}
Return nvmlDeviceGetP2PStatus(Device a, Device b, unsigned index, unsigned *into) {
    char key[64], text[64];
    const char *value;
    Return bad;
    hang("nvmlDeviceGetP2PStatus", a);
    snprintf(key, sizeof key, "p2p_%u_%d", index, index_of(b));
    value = get(a, key, text, sizeof text);
    snprintf(key, sizeof key, "p2p_%u", index);
    if (!value) value = get(a, key, text, sizeof text);
    bad = value ? failure(value) : OK;
    if (!bad) *into = value ? (unsigned)strtoul(value, NULL, 0) : 0;
    return bad;
}
Return nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, unsigned *into) {
    unsigned long long value;
    (void)b;
    *into = number(a, "ancestor", &value) ? 50 : (unsigned)value;
    return OK;
}
